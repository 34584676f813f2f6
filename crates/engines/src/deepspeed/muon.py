"""DeepSpeed's Muon, with the identity in place of the orthogonalisation.

No weight can be read from an orthogonalised gradient. With the identity, the update of a matrix is the gradient that
DeepSpeed gives to Muon, at the place to which DeepSpeed brings the result.
"""

import importlib
import sys

from zprobe_rank.engines.deepspeed.eyes import loss_scale


class Muon:
    """Replaces the function `muon_update`, and emits the microbatches after which DeepSpeed calls the function."""

    def __init__(self, run):
        self.run = run
        self.wrapper = None  # DeepSpeed's optimizer around Muon, once there is one.
        self.moment = None
        importlib.import_module("deepspeed.runtime.zero.muon.original_muon")
        for name, module in list(sys.modules.items()):
            # Modules of older releases import the function when they are loaded.
            if name.startswith("deepspeed.") and "muon_update" in vars(module):
                module.muon_update = self._update
        why = "zprobe puts the identity in place of muon_update, because no weight can be read from its result"
        run.channel.emit("not-observed", what="Muon's momentum and orthogonalisation", why=why)

    def _update(self, gradient, *_args, **_kwargs):
        """The gradient, without the loss scale, because an orthogonalised matrix does not depend on the scale."""
        moment = dict(step=self.run.step, microbatch=self.run.microbatch)
        # Some engines step with zeros during setup, before the run is observed.
        if self.run.observer is not None and moment != self.moment:
            self.moment = moment
            self.run.channel.emit("gradients-transformed", how="orthogonalised", **moment)
        return gradient / self._scale()

    def _scale(self):
        """The factor that the loss scale has left in the gradients that DeepSpeed gives to Muon."""
        wrapper = self.wrapper
        offloads = getattr(wrapper, "cpu_offload", False) or getattr(wrapper, "offload_optimizer", False)
        # With offload, newer releases divide by the loss scale first. Other optimizers always do.
        divides = offloads and hasattr(wrapper, "_apply_muon_updates_cpu_offload")
        if divides or not type(wrapper).__name__.startswith("DeepSpeedZeroOptimizer"):
            return 1.0
        return loss_scale(wrapper) or 1.0
