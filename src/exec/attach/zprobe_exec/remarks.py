"""Facts about the script that gradients do not show: its lines, and what its trainers are set to."""

import gc
import os
import sys
import sysconfig

import torch

# Lines of the script that are named of each kind.
MOST_LINES = 4

# Places of code that is not the user's own.
_FOREIGN = tuple(
    os.path.realpath(path) + os.sep
    for path in {
        sysconfig.get_path("stdlib"),
        sysconfig.get_path("platstdlib"),
        os.path.dirname(torch.__file__),
        os.path.dirname(os.path.dirname(__file__)),
    }
)


class Remarks:
    """What is remarked until the last step."""

    def __init__(self):
        self.lines = {"backward": [], "step": []}
        self.reduced_early = self.clipped_by_value = None
        self.accumulation = {}

    def see_line(self, kind):
        """Remembers the line of the user's own code that this is called from."""
        line, lines = _own_line(), self.lines[kind]
        if line is not None and line not in lines and len(lines) < MOST_LINES:
            lines.append(line)

    def see_trainers(self):
        """Remembers how many microbatches trainers are set to accumulate over."""
        accelerate = sys.modules.get("accelerate.state")
        if accelerate is not None and accelerate.GradientState._shared_state:
            self.accumulation["accelerate"] = accelerate.GradientState().num_steps
        for it in gc.get_objects() if {"deepspeed", "lightning", "pytorch_lightning"} & set(sys.modules) else []:
            kind = type(it).__name__
            if kind == "DeepSpeedEngine":
                self.accumulation["DeepSpeed"] = it.gradient_accumulation_steps()
            elif kind == "Trainer" and hasattr(it, "accumulate_grad_batches"):
                if getattr(getattr(it, "lightning_module", None), "automatic_optimization", False):
                    self.accumulation["Lightning"] = it.accumulate_grad_batches

    def fields(self):
        """The fields of the event."""
        return dict(
            reduced_early=self.reduced_early,
            clipped_by_value=self.clipped_by_value,
            accumulation=self.accumulation,
            backward_at=self.lines["backward"],
            step_at=self.lines["step"],
        )


def _own_line():
    """The innermost line of the user's own code, as `file:line`; None if there is none."""
    frame = sys._getframe(2)
    while frame is not None:
        path = frame.f_code.co_filename
        is_own = not path.startswith("<") and "-packages" + os.sep not in path
        if is_own and not os.path.realpath(path).startswith(_FOREIGN):
            inside = os.path.relpath(path)
            name = os.path.basename(path) if inside.startswith(os.pardir) else inside
            return "%s:%d" % (name, frame.f_lineno)
        frame = frame.f_back
    return None
