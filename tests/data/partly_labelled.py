"""Scans in all states: whole label maps, slices that nobody annotated, ignored pixels, no label map at all."""

from dataclasses import dataclass

import numpy as np

from adawac.data.cases import IGNORED, CaseRef
from adawac.data.preprocessing import Preprocessing
from adawac.data.sources import Source

SHAPE = (16, 16, 8)
#: What `states` of the table must say for each case.
STATES = {
    "whole": ["labelled"] * 8,
    "quarter": ["labelled", "unlabelled", "unlabelled", "unlabelled"] * 2,
    "corner": ["partly ignored"] * 8,
    "mixed": ["labelled", "partly ignored", "unlabelled", "labelled", "labelled", "unlabelled", "labelled", "labelled"],
    "none": ["unlabelled"] * 8,
    "blank": ["unlabelled"] * 8,
    "tested": ["labelled", "unlabelled", *["partly ignored"] * 2, *["labelled"] * 4],
}


@dataclass(frozen=True, kw_only=True)
class PartlyLabelled(Source):
    """`none` has no label map, `blank` one of ignored pixels alone; the others begin and end with an empty slice."""

    def cases(self):
        return [
            CaseRef(dataset=self.dataset, patient=case, id=case, split="test" if case == "tested" else "train")
            for case in STATES
        ]

    def load(self, ref):
        generator = np.random.default_rng(list(STATES).index(ref.id))
        image = generator.normal(0, 1, (1, *SHAPE)).astype(np.float32)
        label = np.zeros(SHAPE, np.uint8)
        label[4:12, 5:11, 1:-1] = 1
        label[6:9, 6:9, 2:5] = 2
        image[0] += label
        for number, state in enumerate(STATES[ref.id]):
            if state == "unlabelled":
                label[..., number] = IGNORED
            if state == "partly ignored":
                label[:8, :, number] = IGNORED
        return ref.with_voxels(image, None if ref.id == "none" else label, np.eye(4), self.class_names)


def partly_labelled():
    return PartlyLabelled(
        dataset="partly",
        classes={"background": (0,), "a": (1,), "b": (2,)},
        preprocessing=Preprocessing(normalisation="none"),
    )
