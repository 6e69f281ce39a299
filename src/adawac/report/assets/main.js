// Putting it together. The sections come first, the atlas last: it waits for its heat map to be unpacked.
function startTheme() {
  const button = byId("theme");
  const draw = () => {
    const dark = document.documentElement.dataset.theme === "dark";
    button.textContent = dark ? "Light" : "Dark";
    button.setAttribute("aria-label", dark ? "Switch to light colours" : "Switch to dark colours");
  };
  button.removeAttribute("aria-pressed");
  button.addEventListener("click", () => {
    const next = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
    document.dispatchEvent(new CustomEvent("choose-theme", { detail: next }));
  });
  document.addEventListener("theme", draw);
  draw();
}

// A page of a run that goes on loads itself again; whoever reads can stop that.
function startRefresh() {
  if (!data.refresh) return;
  const button = byId("refresh");
  let timer = null;
  const wait = () => { timer = setTimeout(() => (dialog.open ? wait() : location.reload()), data.refresh * 1000); };
  const draw = () => { button.textContent = timer === null ? "Follow again" : "Pause"; };
  button.hidden = false;
  button.addEventListener("click", () => {
    if (timer === null) wait();
    else { clearTimeout(timer); timer = null; }
    draw();
  });
  wait();
  draw();
}

function startPrint() {
  let opened = [];
  addEventListener("beforeprint", () => {
    opened = [...document.querySelectorAll("#repeat details:not([open])")];
    for (const one of opened) one.open = true;
  });
  addEventListener("afterprint", () => { for (const one of opened) one.open = false; });
}

startTheme();
startRefresh();
startPrint();
startOverview();
startScores();
startSuspects();
startCurves();
startPictures();
startRepeat();
byId("footer").append(`Written by adawac ${data.adawac}. This file holds images and names from the data: share it as you would share them.`);
startAtlas().then(() => {
  document.documentElement.dataset.ready = "yes";
  performance.mark("ready");
});
