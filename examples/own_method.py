"""A method of one's own: how much each sample's cross-entropy and consistency count.

Run it:  python examples/own_method.py  (ten epochs; another number may follow)

In a package, an entry point makes the method known to the command line as well:
[project.entry-points."adawac.methods"]
focal = "my_package.methods:Focal"
"""

import sys
import tempfile

import adawac
from adawac.config import TrainConfig, override
from adawac.data.phantom import phantom_source

EPOCHS = int(sys.argv[1]) if sys.argv[1:] else 10


@adawac.METHODS.register("focal")
class Focal(adawac.Criterion):
    """Weigh each sample by (1 - p)^gamma, where -log p is its cross-entropy (the focal loss, Lin et al. 2017).

    What the network knows already is left to consistency, without any weight that is learned.
    """

    def __init__(self, num_samples: int, *, gamma: float = 2.0, **options):
        super().__init__(num_samples, **options)
        self.gamma = gamma

    def weigh(self, batch: adawac.objective.SampleTerms) -> adawac.Weighting:
        """Return the weights of the batch; its terms are those of all ranks, without gradients."""
        beta = (1 - (-batch.ell_ce).exp()) ** self.gamma
        return adawac.Weighting(ce=beta, ac=1 - beta, divisor=len(beta))


folder = tempfile.mkdtemp(prefix="adawac-method-")
store = adawac.prepare(phantom_source(13, size=32, slices=(16, 16), sparse=0.5), dest=f"{folder}/store", workers=1)
base = override(
    TrainConfig(),
    {
        "data.store": store.path,
        "data.image_size": (32, 32),
        "data.batch_size": 8,
        "model.name": "smp:Unet/resnet18",
        "model.options": {"encoder_depth": 3, "decoder_channels": [32, 24, 16]},
        "method.preset": "robust",
        "optim.optimizer": "adamw",
        "optim.lr": 3e-3,
        "epochs": EPOCHS,
    },
)
for changes in ({"method.name": "adawac"}, {"method.name": "focal", "method.options": {"gamma": 0.5}}):
    name = changes["method.name"]
    run = adawac.fit(override(base, changes), f"{folder}/{name}")
    last = run.metrics[-1]
    print(f"{name:7} weight of CE: label-sparse {last['beta_sparse']:.2f}, label-dense {last['beta_dense']:.2f}")
