@fact
def pipeline():
    """One step of a pipeline of one stage on the CPU."""
    import torch
    from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

    def step():
        stage = PipelineStage(torch.nn.Linear(4, 4), 0, 1, torch.device("cpu"))
        schedule = ScheduleGPipe(stage, 2, loss_fn=lambda output, target: (output - target).sum())
        schedule.step(torch.ones(2, 4), target=torch.ones(2, 4))
        return True

    return alone(step)


@fact
def pipelining():
    """Names of the schedules of torch.distributed.pipelining, and of the arguments of a schedule."""
    import inspect

    from torch.distributed.pipelining import schedules

    names = [name for name in dir(schedules) if name.startswith("Schedule")]
    return sorted([*names, *inspect.signature(schedules.ScheduleGPipe.__init__).parameters])
