"""Settings of a model that is measured in one process."""

from kubealign.spec.sections.training import Backend, TorchBackendSpec, Trainer
from kubealign_services.roles.calibration.main import _on_one_rank


def test_a_measured_model_shares_its_tokens_with_no_other_rank() -> None:
    shared = TorchBackendSpec(microbatch_tokens=64, context_parallel=4)
    alone = _on_one_rank(Trainer(ranks=8, backend=Backend(torch=shared)))
    assert alone == Trainer(ranks=1, backend=Backend(torch=TorchBackendSpec(microbatch_tokens=64)))
    assert Trainer.model_validate(alone.model_dump()) == alone
