#: head
import contextlib
import itertools
import json
import os
import sys

import torch
import torch.distributed as dist
from torch import nn

#: constants

# ------------------------------------------------------------------------------------------------
# Data: the gradient of every (step, rank, microbatch) is a row of a Walsh-Hadamard matrix, repeated
# over all elements, with a sign for each element. Rows are orthogonal, so that a sum of gradients
# tells how often each of them is in it: exactly, since everything is a small integer.


def hadamard(size):
    matrix = torch.ones(1, 1, dtype=torch.float64)
    while len(matrix) < size:
        matrix = torch.cat([torch.cat([matrix, matrix], 1), torch.cat([matrix, -matrix], 1)])
    return matrix


COLUMNS = STEPS * WORLD_SIZE * GA
LENGTH = 32
while LENGTH < 2 * COLUMNS:
    LENGTH *= 2
H = hadamard(LENGTH)


class Parameter:
    """One of PARAMETERS, and where it lies when all that are trained stand one after the other."""

    def __init__(self, name, shape, trainable, start):
        self.name, self.shape, self.trainable, self.start = name, shape, trainable, start
        self.numel = torch.Size(shape).numel()
        self.elements = slice(start, start + self.numel)

    def used(self, step, microbatch):
        return (step, microbatch) not in UNUSED.get(self.name, [])


def lay_out():
    parameters, start = [], 0
    for name, shape, trainable in PARAMETERS:
        parameters.append(Parameter(name, shape, trainable, start))
        start += parameters[-1].numel if trainable else 0
    return parameters, start


LAYOUT, TOTAL = lay_out()
GENERATOR = torch.Generator().manual_seed(SEED)
SIGNS = torch.randint(0, 2, (TOTAL,), generator=GENERATOR) * 2.0 - 1
# Small integers other than 0, in units of the learning rate: they tell where a piece belongs.
INITIAL = torch.randint(0, 16, (TOTAL,), generator=GENERATOR) - 8.0
INITIAL = torch.where(INITIAL >= 0, INITIAL + 1, INITIAL) * UNIT


def data(step, rank, microbatch, factor):
    """What each parameter is multiplied with in the loss, and hence its gradient."""
    column = (step * WORLD_SIZE + rank) * GA + microbatch
    gradient = factor * H[column].float()[torch.arange(TOTAL) % LENGTH] * SIGNS
    pieces = []
    for parameter in LAYOUT:
        if not parameter.used(step, microbatch):
            pieces.append(None)
        elif parameter.trainable:
            pieces.append(gradient[parameter.elements].reshape(parameter.shape))
        else:
            pieces.append(torch.ones(parameter.shape))
    return pieces


class Block(nn.Module):
    """Some of the parameters. The loss is linear in each, so that its gradient is the data."""

    def __init__(self, parameters):
        super().__init__()
        for parameter in parameters:
            value = INITIAL[parameter.elements] if parameter.trainable else torch.ones(parameter.numel)
            value = nn.Parameter(value.reshape(parameter.shape).to(PARAMETER_DTYPE), parameter.trainable)
            self.register_parameter(parameter.name.replace(".", "_"), value)

    def forward(self, *pieces):
        used = [(p, x) for p, x in zip(self.parameters(), pieces) if x is not None]
        return torch.stack([(p.float() * x.float()).sum() for p, x in used])


class Model(nn.Module):
    """Blocks one after the other; their terms are summed up and scaled to stay integers."""

    def __init__(self):
        super().__init__()
        # One for each layer, and for what stands before and behind them.
        layers = itertools.groupby(LAYOUT, lambda parameter: parameter.name.split(".")[:-2])
        self.blocks = nn.ModuleList([Block(list(parameters)) for _, parameters in layers])

    def forward(self, *pieces):
        terms, at = [], 0
        for block in self.blocks:
            count = len(list(block.parameters()))
            part, at = pieces[at : at + count], at + count
            if any(x is not None for x in part):
                terms.append(block(*part))
        terms = torch.cat(terms)
        loss = terms.sum() * float(WORLD_SIZE * GA)
        return dict(loss=loss, terms=terms) if OUTPUT == "dict" else (loss, terms) if OUTPUT == "tuple" else loss


def loss_of(output):
    return output["loss"] if OUTPUT == "dict" else output[0] if OUTPUT == "tuple" else output


# ------------------------------------------------------------------------------------------------
#: engine


# ------------------------------------------------------------------------------------------------
# From gradients to weights.


def spread(parameters, begin, end):
    """Where elements `begin` to `end` of some parameters, one after the other, lie among all."""
    pieces, at = [], 0
    for parameter in parameters:
        first, last = max(begin, at), min(end, at + parameter.numel)
        if first < last:
            pieces.append((parameter.start + first - at, first - begin, last - first))
        at += parameter.numel
    return pieces


class Tap:
    """What the inner optimizer's step consumes on this rank: the last word before the update."""

    def __init__(self, engine):
        self.pieces, self.problem = {}, None
        for tensor, pieces in engine.fragments():
            self.pieces[id(tensor)] = pieces
            for start, offset, length in pieces:
                held = flat(tensor)[offset : offset + length]
                if not torch.equal(held, INITIAL[start : start + length].double()):
                    self.problem = "this script does not know where this release keeps which part of the master weights"
        self.seen = None
        engine.optimizer.register_step_pre_hook(self.before_step)

    def before_step(self, optimizer, args, kwargs):
        for group in optimizer.param_groups:
            for tensor in group["params"]:
                if self.seen is None or id(tensor) not in self.pieces:
                    continue
                for start, offset, length in self.pieces[id(tensor)]:
                    piece = self.seen[start : start + length]
                    if tensor.grad is not None:
                        piece += flat(tensor.grad)[offset : offset + length]

    def begin(self):
        self.seen = torch.zeros(TOTAL, dtype=torch.float64)

    def held(self):
        """The ranges of elements that this rank's optimizer holds."""
        return merged((start, start + length) for pieces in self.pieces.values() for start, _, length in pieces)


def flat(tensor):
    tensor = tensor.detach()
    return (tensor.to_local() if hasattr(tensor, "to_local") else tensor).reshape(-1).double()


def merged(ranges):
    result = []
    for begin, end in sorted(ranges):
        if result and result[-1][1] == begin:
            result[-1][1] = end
        else:
            result.append([begin, end])
    return result


def gathered(value):
    """The value of every rank."""
    values = [None] * WORLD_SIZE
    dist.all_gather_object(values, value)
    return values


def whole_cut_at(held):
    """All elements, in pieces that were one rank's business each, where those are long enough."""
    cuts = {0, TOTAL}
    for begin, end in sum(held, []):
        if end - begin >= LENGTH:
            cuts.update([begin, end])
    cuts = sorted(cuts)
    return [[begin, end] for begin, end in zip(cuts, cuts[1:])]


def usages():
    """Ranges of elements whose parameters are used in the same microbatches."""
    result = []
    for parameter in LAYOUT:
        if parameter.trainable:
            usage = UNUSED.get(parameter.name)
            if result and result[-1][2] == usage:
                result[-1][1] += parameter.numel
            else:
                result.append([parameter.start, parameter.start + parameter.numel, usage, parameter])
    return result


def decode(buffer, held, step):
    """Decodes every stretch of LENGTH elements: the distinct weights with what was expected of them,
    and how many elements they were read from."""
    found, covered = {}, 0
    for begin, end, _, parameter in usages():
        wanted = expected(parameter, step)
        for first, last in held:
            first, last = max(first, begin), min(last, end)
            if last - first < LENGTH:
                continue
            # The last stretch overlaps the one before.
            starts = [*range(first, last - LENGTH, LENGTH), last - LENGTH]
            covered += last - first
            index = torch.tensor(starts)[:, None] + torch.arange(LENGTH)
            values = buffer[index] * SIGNS.double()[index]
            rows = torch.zeros_like(values).scatter(1, index % LENGTH, values)
            for weights in (rows @ H / LENGTH).tolist():
                key = (tuple(round(weight, 3) + 0.0 for weight in weights), wanted)
                found[key] = found.get(key, 0) + 1
    return found, covered


def expected(parameter, step):
    """1 for every gradient of this step that the parameter has, 0 for everything else."""
    row = [0.0] * LENGTH
    for rank in range(WORLD_SIZE):
        for microbatch in range(GA):
            used = parameter.used(step, microbatch)
            row[(step * WORLD_SIZE + rank) * GA + microbatch] = 1.0 if used else 0.0
    return tuple(row)


def tell(title, found, covered, of, step, tolerance):
    """Prints weights, one row a source rank and one column a microbatch; whether they are right."""
    right = bool(found)
    print("\n%s (%d of %d elements)" % (title, covered, of))
    if not found:
        print("  nothing could be read")
    for (weights, wanted), windows in sorted(found.items(), key=lambda item: -item[1])[:4]:
        wrong = [abs(w - e) > tolerance for w, e in zip(weights, wanted)]
        right = right and not any(wrong)
        print("          " + "".join("%7s" % ("m%d" % m) for m in range(GA)) + "   in %d windows" % windows)
        for rank in range(WORLD_SIZE):
            first = (step * WORLD_SIZE + rank) * GA
            row = "".join("%7g" % weight for weight in weights[first : first + GA])
            print("  rank %2d %s%s" % (rank, row, "   <- wrong" if any(wrong[first : first + GA]) else ""))
        elsewhere = [k for k in range(LENGTH) if wrong[k] and k // (WORLD_SIZE * GA) != step]
        for column in elsewhere[:4]:
            print("  and %g of %s" % (weights[column], name_of(column)))
    return right and all(
        abs(w - e) <= tolerance for weights, wanted in found for w, e in zip(weights, wanted)
    )


def name_of(column):
    if column >= COLUMNS:
        return "something that no gradient explains"
    step, rest = divmod(column, WORLD_SIZE * GA)
    return "step %d, rank %d, microbatch %d" % (step, rest // GA, rest % GA)


# ------------------------------------------------------------------------------------------------


def main():
    torch.set_num_threads(1)
    engine = Engine(Model())
    rank = dist.get_rank()
    if dist.get_world_size() != WORLD_SIZE:
        sys.exit("start %d ranks: torchrun --nproc-per-node %d %s" % (WORLD_SIZE, WORLD_SIZE, sys.argv[0]))
    tap = Tap(engine)
    parts = whole_cut_at(gathered(tap.held()))
    if rank == 0:
        print("%s, torch %s, %d ranks, %d microbatches" % (engine.describe(), torch.__version__, WORLD_SIZE, GA))
        if tap.problem:
            print("only the update is read: " + tap.problem)
    right, taken = True, 0
    for step in range(STEPS):
        before = engine.parameters()
        tap.begin()
        for microbatch in range(GA):
            for number, factor in enumerate(PARTS):
                final = microbatch == GA - 1 and number == len(PARTS) - 1
                with engine.accumulation(final):
                    loss = loss_of(engine.forward(*data(step, rank, microbatch, factor)))
                    engine.backward(loss)
            engine.step(microbatch == GA - 1)
        if engine.skipped():
            if rank == 0:
                print("\nstep %d was skipped: the engine saw an overflow" % step)
            continue
        taken += 1
        findings = []
        if not tap.problem:
            held = tap.held()
            size = sum(end - begin for begin, end in held)
            findings.append(("what the optimizer of rank %d consumes" % rank, decode(tap.seen, held, step), size, TOLERANCE))
        if UPDATE_TOLERANCE is not None:
            update = (before - engine.parameters()) / UNIT
            findings.append(("the update of the parameters on rank %d" % rank, decode(update, parts, step), TOTAL, UPDATE_TOLERANCE))
        for title, (found, covered), of, tolerance in sum(zip(*gathered(findings)), ()):
            with contextlib.redirect_stdout(sys.stdout if rank == 0 else Nowhere()):
                right = tell("step %d, %s" % (step, title), found, covered, of, step, tolerance) and right
    if rank == 0:
        if right and taken:
            print("\nRIGHT: every gradient arrived once, with the weight that it should have")
        else:
            print("\nWRONG: not every gradient arrived once, with the weight that it should have")
    dist.barrier()
    dist.destroy_process_group()
    sys.stdout.flush()
    # Not by the interpreter's own end: an engine's process groups have threads that it may trip over.
    os._exit(0 if right and taken else 1)


class Nowhere:
    """Swallows what ranks other than 0 print."""

    def write(self, text):
        pass

    def flush(self):
        pass


if __name__ == "__main__":
    main()
