import base64
import hashlib
import html.parser
import json
import re
from pathlib import Path

import pytest

from adawac.cli import run as run_cli
from adawac.errors import ConfigError, RunError
from adawac.report import collect, render, watch_page, write_report
from adawac.runs import Run, example_run

HOSTILE = (
    "</script><script>alert(1)</script>",
    "<!--<script>[[script]]<!--:blobs:-->",
    "\"'><img src=x onerror=alert(1)>&amp;",
    "line\nbreak\u2028and\u2029more\r\t",
    "\u202eright to left\u200f אבג",
    "=HYPERLINK(1)",
    "x" * 3000,
)


class Page(html.parser.HTMLParser):
    """The tags of a page, and what its scripts and styles hold."""

    def __init__(self, text: str):
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.contents: list[str] = []
        self.open = False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self.contents.append("")
        self.open = True

    def handle_endtag(self, tag: str) -> None:
        self.open = False

    def handle_data(self, data: str) -> None:
        if self.open:
            self.contents[-1] += data

    def all(self, tag: str) -> list[tuple[dict[str, str | None], str]]:
        named = zip(self.tags, self.contents, strict=True)
        return [(attributes, content) for (name, attributes), content in named if name == tag]


def test_the_same_runs_give_the_same_bytes(tmp_path: Path):
    example_run(tmp_path / "run", slices=6)
    first = write_report(tmp_path / "run", tmp_path / "1.html").read_bytes()
    second = write_report([tmp_path / "run"], tmp_path / "2.html").read_bytes()
    assert first == second
    assert first.isascii() is False  # the script has its β
    assert len(first) < 300_000


def test_nothing_is_loaded_and_only_our_scripts_may_run(tmp_path: Path):
    example_run(tmp_path / "run", slices=6)
    page = Page(render(collect([tmp_path / "run"])))
    assert not [tag for tag, attributes in page.tags if {"src", "srcset", "style", "onclick"} & attributes.keys()]
    assert {tag for tag, _ in page.tags}.isdisjoint({"link", "iframe", "object", "embed", "base", "form"})
    [policy] = [
        attributes["content"]
        for attributes, _ in page.all("meta")
        if attributes.get("http-equiv") == "Content-Security-Policy"
    ]
    assert policy.startswith("default-src 'none'; ")
    assert "unsafe" not in policy
    assert "http" not in policy
    scripts = [content for attributes, content in page.all("script") if "type" not in attributes]
    [(_, style)] = page.all("style")
    for text in (*scripts, style):
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"'sha256-{digest}'" in policy
    assert policy.count("sha256") == 3
    assert not [
        text for text in scripts if re.search(r"innerHTML|outerHTML|insertAdjacent|document\.write|eval\(", text)
    ]


def test_hostile_names_stay_data(tmp_path: Path):
    example_run(tmp_path / "run", cases=HOSTILE, slices=4, epochs=2)
    text = render(collect([tmp_path / "run"]))
    page = Page(text)
    plain = Page(render(collect([example_run(tmp_path / "plain", slices=4, epochs=2)])))
    blobs = [attributes for attributes, _ in page.all("script") if "blob-" in (attributes.get("id") or "")]
    others = [attributes for attributes, _ in plain.all("script") if "blob-" in (attributes.get("id") or "")]
    assert len(page.tags) - len(blobs) == len(plain.tags) - len(others)  # no name became a tag
    [data] = [content for attributes, content in page.all("script") if attributes.get("id") == "data"]
    assert not set("<>&\u2028") & set(data)
    assert tuple(json.loads(data)["runs"][0]["samples"]["cases"]) == HOSTILE
    assert "alert(1)</script>" not in text


def test_a_page_that_follows_a_run_loads_itself_again(tmp_path: Path):
    report = collect([example_run(tmp_path / "run", slices=4, epochs=2)])
    assert '<noscript><meta http-equiv="refresh" content="2.5"></noscript>' in render(report, refresh=2.5)
    assert 'http-equiv="refresh"' not in render(report)


def test_where_it_cannot_be_written(tmp_path: Path):
    run = example_run(tmp_path / "run", slices=4, epochs=2)
    with pytest.raises(RunError, match="is a folder"):
        write_report(run, tmp_path)
    with pytest.raises(ConfigError, match="at least 0 pictures in the report, but got -1"):
        write_report(run, tmp_path / "report.html", pictures=-1)
    with pytest.raises(RunError, match="Expected to write"):
        write_report(run, tmp_path / "run" / "run.json" / "report.html")


def test_report_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    for name in ("one", "two"):
        example_run(tmp_path / name, slices=4, epochs=2)
    out = tmp_path / "new" / "report.html"
    assert run_cli(["report", str(tmp_path / "one"), str(tmp_path / "two"), "--out", str(out), "--pictures", "1"]) == 0
    assert capsys.readouterr().out == f"{out}: {out.stat().st_size / 1e6:.1f} MB\n"
    page = Page(out.read_text(encoding="utf-8"))
    [data] = [content for attributes, content in page.all("script") if attributes.get("id") == "data"]
    assert len(json.loads(data)["pictures"]) == 1
    assert run_cli(["report", str(tmp_path / "absent")]) == 2
    assert "Expected a run folder" in capsys.readouterr().err


def test_only_a_report_of_the_same_runs_is_replaced_without_asking(tmp_path: Path):
    runs = [
        example_run(tmp_path / name / "run", cases=["c"], slices=2, epochs=1, seed=seed).folder
        for seed, name in enumerate("ab")
    ]
    for folder, created in zip(runs, ("2026-01-01", "2026-01-02"), strict=True):
        info = json.loads((folder / "run.json").read_text())
        (folder / "run.json").write_text(json.dumps(info | {"created": created}))
    page = tmp_path / "report.html"
    write_report(runs[0], page)
    write_report(runs[0], page)
    write_report(runs, page)  # the first run is still in it
    with pytest.raises(ConfigError, match="is a report of run, run"):
        write_report(runs[0], page)
    with pytest.raises(ConfigError, match="`overwrite=True`"):
        watch_page(Run(runs[1]), page, every=1)
    write_report(runs[0], page, overwrite=True)
    page.write_text("<html>somebody else's</html>")
    with pytest.raises(ConfigError, match="is no report"):
        write_report(runs[0], page)
    assert "somebody" in page.read_text()
    assert run_cli(["report", str(runs[0]), "--out", str(page)]) == 2
    assert run_cli(["report", str(runs[0]), "--out", str(page), "--overwrite"]) == 0
