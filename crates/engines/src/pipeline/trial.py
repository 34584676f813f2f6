@fact
def pipeline():
    """True if one step of a pipeline with a single stage succeeds on the CPU."""
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
    """The names of the schedules of torch.distributed.pipelining, of the arguments of a schedule, and of the arguments
    of `send_object_list`, by which stages send each other shapes."""
    import inspect

    from torch.distributed import send_object_list
    from torch.distributed.pipelining import schedules

    names = [name for name in dir(schedules) if name.startswith("Schedule")]
    functions = (schedules.ScheduleGPipe.__init__, send_object_list)
    return sorted({*names, *(name for it in functions for name in inspect.signature(it).parameters)})
