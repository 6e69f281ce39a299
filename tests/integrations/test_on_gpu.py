"""Other people's training loops on a GPU: the CPU's weights, in every precision that they offer, and a run folder."""

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

import adawac
from adawac.data.views import PairDataset
from adawac.runs import Run
from adawac.runs.recorder import RunRecorder
from tests.integrations.small_training import NUM_SAMPLES, network, optimizer_of, plain_loop, scans

DEVICE = "cuda"
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.filterwarnings("ignore"),  # of Lightning's, ignite's and the compiler's own
]
# How far a weight may be off, by the precision of the network.
NEAR = {torch.float32: 1e-4, torch.bfloat16: 0.02, torch.float16: 0.005}
LIGHTNING = {torch.float32: "32-true", torch.bfloat16: "bf16-mixed", torch.float16: "16-mixed"}


@pytest.fixture(scope="module")
def expected():
    """The weights of a plain loop in float32 on the CPU."""
    return plain_loop(2)[0]


def assert_recorded(folder, criterion):
    """Compare to the bit, on the device: Lightning takes a module back to the CPU, whose exp rounds differently."""
    run = Run(folder)
    assert (run.status, run.epoch) == ("finished", 2)
    np.testing.assert_array_equal(run.history["beta"][-1], criterion.to(DEVICE).weights.beta.cpu())
    assert run.samples.label_sparse.tolist() == [row % 2 == 0 for row in range(NUM_SAMPLES)]


@pytest.mark.parametrize("dtype", list(NEAR))
def test_a_plain_loop(expected, dtype):
    beta, _ = plain_loop(2, autocast=dtype, device=DEVICE)
    torch.testing.assert_close(beta, expected, rtol=0, atol=NEAR[dtype])


def test_a_compiled_network(expected):
    beta, _ = plain_loop(2, device=DEVICE, wrap=torch.compile)
    torch.testing.assert_close(beta, expected, rtol=0, atol=NEAR[torch.float32])


def test_the_recorder_follows_a_criterion_to_the_device(tmp_path):
    model, criterion = network(), adawac.AdaWAC(NUM_SAMPLES)
    tap, pairs = adawac.EncoderTap(model, "0"), PairDataset(scans(), seed=1)
    with RunRecorder(tmp_path / "run", criterion, epochs=2) as recorder:
        model.to(DEVICE), criterion.to(DEVICE)
        for epoch in (1, 2):
            for batch in DataLoader(pairs, batch_size=4):
                images, labels = (torch.cat(batch[name]).to(DEVICE) for name in ("images", "labels"))
                criterion(model(images), labels, tap.pop(), batch["index"].to(DEVICE)).loss.backward()
            recorder.end_epoch(epoch)
    assert_recorded(tmp_path / "run", criterion)


@pytest.mark.parametrize("dtype", list(NEAR))
def test_lightning(tmp_path, expected, dtype):
    lightning = pytest.importorskip("lightning.pytorch")
    from adawac.integrations.lightning import RunFolder

    class Segmenter(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.network, self.criterion = network(), adawac.AdaWAC(NUM_SAMPLES)
            self.tap = adawac.EncoderTap(self.network, "0")

        def training_step(self, batch, batch_idx):
            logits = self.network(torch.cat(batch["images"]))
            return self.criterion(logits, torch.cat(batch["labels"]), self.tap.pop(), batch["index"]).loss

        def configure_optimizers(self):
            return optimizer_of(self.network)

    def fit(epochs, checkpoint=None):
        module = Segmenter()
        trainer = lightning.Trainer(
            accelerator=DEVICE,
            devices=1,
            precision=LIGHTNING[dtype],
            max_epochs=epochs,
            default_root_dir=tmp_path,
            callbacks=[RunFolder(tmp_path / "run")],
            logger=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            enable_checkpointing=False,
        )
        trainer.fit(module, DataLoader(PairDataset(scans(), seed=1), batch_size=4), ckpt_path=checkpoint)
        trainer.save_checkpoint(tmp_path / "last.ckpt")
        return module

    fit(1)
    module = fit(2, tmp_path / "last.ckpt")
    torch.testing.assert_close(module.criterion.weights.beta.cpu(), expected, rtol=0, atol=NEAR[dtype])
    assert_recorded(tmp_path / "run", module.criterion)


@pytest.mark.parametrize("amp", [False, True])
def test_monai_engines(tmp_path, expected, amp):
    pytest.importorskip("monai")
    pytest.importorskip("ignite")
    from monai.engines import SupervisedTrainer

    from adawac.integrations.monai import EngineLoss, RunFolder

    model, criterion = network().to(DEVICE), adawac.AdaWAC(NUM_SAMPLES).to(DEVICE)
    loss, pairs = EngineLoss(criterion, adawac.EncoderTap(model, "0")), PairDataset(scans(), seed=1)
    trainer = SupervisedTrainer(
        device=torch.device(DEVICE),
        max_epochs=2,
        train_data_loader=DataLoader(pairs, batch_size=4),
        network=model,
        optimizer=optimizer_of(model),
        loss_function=loss,
        prepare_batch=loss.prepare_batch,
        train_handlers=[RunFolder(tmp_path / "run", criterion)],
        amp=amp,
    )
    from ignite.engine import Events

    trainer.add_event_handler(Events.EPOCH_STARTED, lambda engine: pairs.set_epoch(engine.state.epoch - 1))
    trainer.run()
    near = NEAR[torch.float16 if amp else torch.float32]
    torch.testing.assert_close(criterion.weights.beta.cpu(), expected, rtol=0, atol=near)
    assert_recorded(tmp_path / "run", criterion)
