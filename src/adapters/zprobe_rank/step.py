"""One optimizer step of a rank: its microbatches, and the engine's step at the gradient accumulation boundary."""

import contextlib
import time


def take_step(spec, step, engine, probe, observer, channel):
    """Takes one optimizer step: forward and backward of every microbatch, then the engine's step."""
    watch = Stopwatch()
    take = take_all_at_once if engine.schedules_microbatches else take_in_turn
    take(spec, step, engine, probe, observer, channel, watch)
    engine_ns = watch.elapsed_ns()
    observer.after_step(step)
    channel.emit("step-timed", step=step, engine_ns=engine_ns, total_ns=watch.elapsed_ns())


def take_in_turn(spec, step, engine, probe, observer, channel, watch):
    """Takes the microbatches forward and backward one after the other."""
    accumulation_steps = spec["gradient_accumulation_steps"]
    for microbatch in range(accumulation_steps):
        boundary = microbatch + 1 == accumulation_steps
        engine.begin(step, microbatch)
        with watch.stopped():
            # Done here as by a data loader.
            parts = probe.parts(step, microbatch)
        for number, data in enumerate(parts):
            last = number + 1 == len(parts)
            channel.emit("phase-entered", step=step, microbatch=microbatch, phase="forward")
            with engine.accumulation(final=boundary and last):
                loss = probe.loss(engine, data)
                observer.before_backward(step, microbatch, loss, data)
                channel.emit("phase-entered", step=step, microbatch=microbatch, phase="backward")
                try:
                    engine.backward(loss)
                finally:
                    observer.after_backward(step, microbatch, last)
        end_microbatch(step, microbatch, boundary, engine, observer, channel)


def take_all_at_once(spec, step, engine, probe, observer, channel, watch):
    """Has the engine take all microbatches forward and backward in one call."""
    last = spec["gradient_accumulation_steps"] - 1
    with watch.stopped():
        data = [part.forward for microbatch in range(last + 1) for part in probe.parts(step, microbatch)]
    channel.emit("phase-entered", step=step, microbatch=last, phase="backward")
    engine.run_microbatches(data)
    end_microbatch(step, last, True, engine, observer, channel)


def end_microbatch(step, microbatch, boundary, engine, observer, channel):
    """Ends a microbatch, at the boundary with the optimizer's step."""
    if boundary:
        observer.before_step(step, microbatch)
        channel.emit("phase-entered", step=step, microbatch=microbatch, phase="optimizer-step")
    try:
        engine.step(boundary)
    except BaseException:
        observer.failed_step(step)
        raise


class Stopwatch:
    """Measures the time since it was made, without the time during which it was stopped."""

    def __init__(self):
        self.started = time.perf_counter_ns()

    @contextlib.contextmanager
    def stopped(self):
        """Does not count the time spent inside the context."""
        before = time.perf_counter_ns()
        yield
        self.started += time.perf_counter_ns() - before

    def elapsed_ns(self):
        """Measured time in nanoseconds."""
        return time.perf_counter_ns() - self.started
