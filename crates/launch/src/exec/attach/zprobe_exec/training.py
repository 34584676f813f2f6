"""Follows the training of this process: its steps and microbatches, from the first backward to the last watched step.

A step ends when the next backward begins after every optimizer has stepped. Optimizers may take turns, as in a GAN: a
turn consists of the backwards before some of the optimizers step, and of these steps. The mode, `coded` or `observed`,
decides whether gradients are replaced, and whether the process continues after the last watched step.
"""

import atexit
import collections
import os
import statistics
import sys
import traceback

import torch

from zprobe_exec import (
    agreement,
    asides,
    between,
    clipping,
    coded,
    fragments,
    fused,
    leaves,
    loss,
    meshes,
    names,
    objects,
    outputs,
    overflow,
    process,
    refusals,
    transforms,
    turns,
    update,
    wrapped,
)
from zprobe_exec.channel import Channel
from zprobe_exec.coded import Coded
from zprobe_exec.mailbox import Mailbox
from zprobe_exec.observed import Observed
from zprobe_exec.remarks import Remarks
from zprobe_exec.silence import Silence
from zprobe_exec.stepping import Stepping
from zprobe_rank.tensors import flat

# The number of turns of the first step after which the step no longer waits for optimizers that never stepped.
MOST_TURNS = 8

# A part of torch's error for a graph that was freed by an earlier backward. The script's own backward will raise the
# same error.
FREED = "backward through the graph a second time"


class Training:
    """Follows the steps of this rank, records them, and lets the mode act on gradients."""

    def __init__(self, settings, is_on, device, modules, arithmetic):
        """`is_on` is a function that is false while gradients are computed without being accumulated. `device` is the
        device of the first loss. `modules` and `arithmetic` have watched since the import of torch."""
        self.settings, self.is_on = settings, is_on
        self.rank, self.world_size = process.place()
        self.mode = self.silence = None
        self.over = False
        self.channel = Channel(settings, self.rank, self._lost)
        self.mailbox = Mailbox(os.path.join(settings["directory"], "mail"), self.rank, self.world_size)
        self.mailbox.post("joined", {})
        self.step = self.microbatch = self.code = self.backwards = 0
        self.roots, self.terms = {}, {}
        self.stepped = self.in_backward = False
        self.optimizer = None  # The class name of the optimizer that stepped last.
        self.turns = turns.Turns()
        self.remarks = Remarks()
        self.stepping = []
        self.fired, self.dtypes, self.walks, self.indices = {}, set(), [], {}
        self.leaves = leaves.Leaves(self._name, self._gradient)
        self.held, self.fused = fragments.Fragments(), fused.Fused()
        self.asides, self.overflow = asides.Asides(self.held), None
        self.between = between.Between(self)
        self.clipping, self.update = clipping.Clipping(self), update.Update(self)
        self.modules, self.arithmetic, self.reached = modules, arithmetic, set()
        self.unseen = set()  # The names of observations that have failed.
        self.transforms, self.transformed = transforms.Transforms(self._transformed), set()
        self.loss, self.release_outputs = loss.Loss(), lambda: None
        self.channel.emit(
            "rank-joined", world_size=self.world_size, kind=device.split(":")[0], backend=process.backend()
        )
        self.channel.emit("rank-ready", versions=process.versions(), device=device)
        atexit.register(self.end_of_script)
        self.excepthook, sys.excepthook = sys.excepthook, self._failed
        # `sys.exit` is wrapped, because the exit code is unknown in exit handlers.
        self.exit, self.exit_code, sys.exit = sys.exit, None, self._exit

    def begin(self):
        """Finds the parameters, and begins to watch the training; to be called once."""
        objects.look_again()
        self.params, self.names = names.find()
        self.sizes = {name: param.numel for name, param in self.params.items()}
        self.overflow = overflow.Overflow(self.turns, self.names)
        self.initial = self.softly("parameters", self.digests) or {}
        self.mode = Observed(self) if self.settings["observe"] else Coded(self)
        self.transforms.watch()
        see = lambda before, behind: self.softly("the loss", self.loss.see_output, before, behind)
        self.release_outputs = outputs.watch(see)
        if self.world_size > 1:
            self.silence = Silence(self.channel)

    def is_aside(self):
        """True if backwards belong to no training step: after the last watched step, or within an optimizer's step,
        which may evaluate a closure again."""
        return self.over or bool(self.stepping)

    def give_up(self, error):
        """Ends the watch, because the script cannot be diagnosed (`Unreadable`), or because zprobe has failed. A
        process that was trained on codes exits."""
        if not self.over:
            self.over = True
            why = str(error) if isinstance(error, turns.Unreadable) else failure(error)
            self.channel.emit("not-observed", what="the rest of the script", why=why)
            self._finish()
            self._let_go()

    def _lost(self):
        """Ends the watch, because records of this rank can no longer be written."""
        self.over = True
        self._end_silence()
        self._let_go()

    def _end_silence(self):
        if self.silence is not None:
            self.silence.end()

    def _let_go(self):
        """Ends the mode: the script continues without zprobe, or the process exits if it was trained on codes."""
        if self.mode is not None:
            self.mode.end()
        elif not self.settings["observe"]:
            coded.leave(self)

    def softly(self, what, see, *args):
        """The result of `see`, an optional observation; `None` if `see` fails, or if an observation with the name
        `what` has failed before."""
        if what in self.unseen:
            return None
        try:
            return see(*args)
        except Exception as error:
            if FREED not in str(error):
                self.unseen.add(what)
                self.channel.emit("not-observed", what=what, why=failure(error))
            return None

    # Backwards of the script.

    def takes_part(self, tensors):
        """False for an outermost backward without any gradient of a parameter, which is no microbatch."""
        return self.over or not self.leaves.are_inputs(tensors)

    def before_backward(self, tensors):
        """Called before each outermost backward of the script: may end a turn or a step, and watches the loss."""
        refusals.refuse_hidden_backward()
        self.softly("clipping", self.clipping.in_vain.before_backward)
        if self.stepped:
            self._end_turn()
            if self.over:
                return
        self.in_backward = True
        self.backwards += 1
        self.line = self.remarks.see_line("backward")
        self.softly("modules", self.modules.see_backward)
        self.samples, self.input = self.softly("forward", self.modules.take_input) or (None, None)
        self.fired = {}
        # The number of AccumulateGrad nodes, and by the name of a parameter the number of graphs that reach it.
        self.walked = (0, collections.Counter())
        # Padding is searched in the first step only, because the search takes time.
        self.loss, stale = loss.Loss(reads_targets=self.step == 0), []
        see_node = lambda node: stale.append(self.softly("forward", self.update.see_node, node))
        # Only the outermost backward shows whether an input has a gradient: inputs of a nested backward are activations
        # of a checkpoint.
        self.reaches_input = self.before_nested(tensors, see_node)
        self.softly("the loss", self.loss.watch, tensors)
        if self.step > 0 and self.microbatch and self.is_alone() and self.asides.are_cleared():
            self._set_aside()
        elif self.step == 0 and self.microbatch and not self.stepped:
            if self.softly("overflows", self.overflow.gives_up):
                self._give_up_window()
        # A second backward of the same loss keeps the loss's code.
        roots = [tensor.grad_fn for tensor in tensors]
        key = tuple(id(root) for root in roots)
        # The nodes are kept alive, so that their `id`s are not reused for other nodes.
        self.code, _ = self.roots.setdefault(key, (len(self.roots), roots))
        self.between.begin()
        if self.has_code():
            self.channel.emit("phase-entered", phase="backward", step=self.step, microbatch=self.code)
            self.softly("forward", self._see_forward, {id(it) for it in stale if it is not None})

    def _see_forward(self, stale):
        """Emits the parameters that the forward has used with outdated values. Outdated are the parameters whose `id`
        is in `stale`, and at the beginning of a step the parameters that differ from their copy in an optimizer."""
        if self.step == 0:
            return
        named = {self.names.get(it) for it in stale} & set(self.indices)
        differing = [(self.indices[name], self.sizes[name], 0) for name in sorted(named)]
        factor = self.update.undone.factor() if self.microbatch == 0 else None
        if factor is not None:
            self.channel.emit("parameters-multiplied", step=self.step - 1, factor=factor)
        elif self.microbatch == 0:
            differing += self.update.stale()
            unmoved = self.update.unmoved()
            if unmoved:
                self.channel.emit("parameters-unmoved", step=self.step - 1, params=unmoved)
        self._emit_stale(self.step, self.code, differing)

    def _emit_stale(self, step, microbatch, differing):
        """Emits the parameters of which the forward has used other values than the optimizers hold."""
        told = [dict(param=param, elements=elements, first=first) for param, elements, first in differing]
        if told:
            self.channel.emit("forward-used", step=step, microbatch=microbatch, differing=told)

    def before_nested(self, tensors, visit=None):
        """Called before a backward inside of a backward, as of a reentrant checkpoint: adds the inner backward to the
        outer one. Returns true if the backward reaches an input. `visit` is called with each node that accumulates no
        gradient."""
        nodes, reached, inputs = self.leaves.watch(tensors, visit or (lambda node: None))
        self.fused.before_backward(leaf for _, leaf in self.leaves.hooked.values())
        self.reached.update(reached)
        self.walked = (self.walked[0] + nodes, self.walked[1] + collections.Counter(reached))
        return inputs

    def _set_aside(self):
        """Called when gradients of this step were cleared before any optimizer has stepped: emits the reason, if known.
        """
        if self.microbatch == self.mode.columns:
            self._give_up_window()
            return
        for microbatch, why in self.asides.reasons(self.reaches_input):
            self.channel.emit("microbatch-set-aside", step=self.step, microbatch=microbatch, why=why)

    def _give_up_window(self):
        """Begins the step again, because the script has given up all microbatches (the window) of the step."""
        self.channel.emit("window-given-up", step=self.step, microbatches=self.microbatch)
        self.microbatch, self.roots, self.terms, self.walks = 0, {}, {}, []
        self.mode.forget()
        self.asides.begin()
        self.between.forget()

    def is_alone(self):
        """True unless several optimizers take turns."""
        return len(self.turns.owned) < 2

    def after_backward(self):
        """Called after the outermost backward: emits the backward's observations."""
        self.fused.after_backward()
        if self.over:
            return
        self.in_backward = False
        self.softly("modules", self.modules.see_backward)
        weighed = self.softly("the loss", self.loss.take, self.samples)
        again = self.softly("the loss", self.loss.again, self.terms, self.code) or []
        alone = self.is_alone()
        if weighed is not None and self.has_code():
            at = dict(step=self.step, microbatch=self.code, turn=self.turns.at, at=self.line)
            of_forward = dict(samples=self.samples, input=self.input)
            self.channel.emit("loss-weighed", again=again, **at, **of_forward, **weighed)
        if self.has_code():
            nodes, graphs = self.walked
            reached = set(graphs)
            due = self.turns.due(reached)
            # A parameter that is used inside and outside of a reentrant checkpoint gets a gradient from both graphs.
            fired = {
                name: max(count - max(graphs[name] - 1, 0), 1)
                for name, count in self.fired.items()
                if name not in reached - due
            }
            self.walks.append((self.step, self.code, nodes, due, fired))
            if self.step > 0:
                self.emit_walks()
            self.channel.emit("backward-ended", step=self.step, microbatch=self.code)
        self.microbatch = len(self.roots)
        if self.step == 0 and not self.stepped:
            self.softly("overflows", self.overflow.after_backward)
        if self.step > 0 and alone:
            self.between.when_over(self._see_gradients)
        self.mode.after_backward()
        # An optimizer may have stepped inside of this backward, parameter by parameter.
        self._end_after_last_step()

    def _see_gradients(self):
        """Copies the gradients right after a backward."""
        if self.over:
            return
        try:
            self.held.after_backward()
            self.asides.after_backward(self.code, self.reaches_input)
            self.between.after_backward()
            self.mode.see_gradients()
        except Exception as error:
            self.give_up(error)

    def emit_walks(self):
        """Emits the graphs of backwards. The graphs of the first step wait until parameters have numbers."""
        walks, self.walks = self.walks, []
        for step, microbatch, nodes, reached, fired in walks:
            at = dict(step=step, microbatch=microbatch)
            params = sorted(self.indices[name] for name in reached if name in self.indices)
            self.channel.emit("graph-walked", accumulate_grad_nodes=nodes, params=params, **at)
            if self.indices:
                numbers = [fired.get(name, 0) for name in self.indices]
                fired, arrived = self.between.fired(numbers)
                self.channel.emit("hooks-fired", fired=fired, arrived=arrived, **at)

    def _transformed(self, how):
        """Called when an engine has transformed gradients: emits `gradients-transformed` once for each microbatch."""
        moment = (self.step, self.code)
        if not self.is_aside() and moment not in self.transformed:
            self.transformed.add(moment)
            self.channel.emit("gradients-transformed", step=self.step, microbatch=self.code, how=how)

    def has_code(self):
        """True if the present microbatch is recorded: its number is among those with codes or samples."""
        return self.code < self.mode.columns

    def _name(self, leaf):
        name = self.names.get(id(leaf))
        if name is None and self.step == 0:
            # The model may have been made, or cut into shards, after the last search for names.
            objects.look_again()
            params, found = names.find()
            self.names.update(found)
            names.of_optimizers(params, self.names, leaf)
            for name, param in params.items():
                self.params.setdefault(name, param)
                self.sizes.setdefault(name, param.numel)
            name = self.names.get(id(leaf))
        return name

    def _gradient(self, name, leaf, gradient):
        """The replacement of a leaf's gradient; `None` if the gradient is not replaced."""
        if self.is_aside() or not self.is_on():
            return None
        try:
            added = self.fused.gradient(leaf)
            gradient = gradient if added is None else added
            if not self._is_whole(name, gradient):
                self.walked[1].pop(name, None)
                return None
            count = self.fired.get(name, 0) + 1
            replacement, part = self.mode.gradient(name, gradient, count), self.params[name].part
            if replacement is not None and part is not None:
                replacement = part.wrap(replacement, gradient)
            if added is not None:
                self.fused.settle(leaf, replacement)
                replacement = None
        except Exception as error:
            self.give_up(error)
            return None
        self.dtypes.add(gradient.dtype)
        self.fired[name] = count
        return replacement

    def _is_whole(self, name, gradient):
        """True for a dense, real gradient with as many elements as the parameter. The gradient is `None` if an autograd
        function of the script has returned `None`."""
        param = self.params.get(name)
        if param is None or gradient is None or gradient.layout != torch.strided or gradient.is_complex():
            return False
        return flat(gradient).numel() == param.numel and self.mode.knows(name)

    # Optimizer steps and training steps.

    def before_step(self, optimizer):
        """Called before an optimizer consumes gradients: records them."""
        if self.over:
            return
        self.remarks.see_line("step")
        if self.step == 0:
            objects.look_again()
        self.softly("schedules", self.remarks.see_schedules, self.step)
        last = self._last_microbatch()
        self.channel.emit("phase-entered", phase="optimizer-step", step=self.step, microbatch=last)
        over = Stepping()
        self.stepping.append(over)
        tensors = [it for group in optimizer.param_groups for it in group["params"]]
        self.softly("clipping", self.clipping.before_step, optimizer, tensors)
        if self.step == 0:
            self.between.arm()
            self.gathered = meshes.gathered_params()
        reader, found, factors = self.step == 0 and self.mode.reader(), {}, []
        for tensor in tensors:
            fragment = found.get(id(tensor)) or self.held.of.get(id(tensor))
            if self.step == 0 and fragment is None:
                known = len(reader.factors) if reader else 0
                segments = self.mode.segments(reader, tensor)
                fragment = found[id(tensor)] = fragments.Fragment(tensor, segments, optimizer)
                fragment.choose(self.mode.choose_first)
                over.found.append(fragment)
                # A tensor without a block, such as an empty shard, shows no factor.
                factors += [it / self.clipping.factor(tensor) for it in (reader.factors[known:] if reader else [])]
            elif self.step == 0 and (id(tensor) in found or fragment.optimizer is not optimizer):
                over.again.append(fragment)
            if fragment is not None:
                over.parts.append((fragment, self.mode.consumed(fragment, self.clipping)))
        self.softly("forward", self.update.see_first, over.found)
        factor = statistics.median(factors) / self.settings["unit"] if factors else None
        self.softly("the update", self.update.before_step, optimizer, tensors, factor)
        held = set().union(*(fragment.params() for fragment, _ in over.parts))
        for around in self.stepping[:-1]:
            around.hand_on(tensors, held)
        if self.step == 0:
            self.turns.step(optimizer, held)
        else:
            order = list(self.indices)
            self.turns.now.update(order[index] for index in held)
        if self.settings["dry"]:
            over.spared = [(it, it.grad) for it in tensors]
            for tensor in tensors:
                tensor.grad = None
        self.stepped = True
        self.optimizer = type(optimizer).__name__

    def after_step(self, optimizer):
        """Called after an optimizer has stepped: completes the record of the optimizer's step."""
        if not self.stepping:
            return
        over = self.stepping.pop()
        self.softly("the update", self.update.after_step, optimizer)
        self.clipping.forget(it for group in optimizer.param_groups for it in group["params"])
        for tensor, gradient in over.spared:
            tensor.grad = gradient
        if self.over:
            return
        self.held.adopt(over.found, over.again)
        self.held.consume(over.parts)
        waits = bool(self.turns.idle(self.names)) if self.step == 0 else self.held.waits()
        self.channel.emit("step-taken", step=self.step, is_last=not waits)
        self._end_after_last_step()

    def _end_after_last_step(self):
        """Ends the last watched step, and the watch, as soon as every optimizer has stepped."""
        is_last = self.step + 1 == self.mode.steps and self.stepped and not self.over
        if is_last and not self.stepping and not self.in_backward and not self.held.waits():
            self._end_step()
            self._end()

    def _end_turn(self):
        """Called when a backward begins after an optimizer has stepped: ends the turn, and ends the step if no
        optimizer is left to step."""
        if self.step == 0:
            self.turns.seen[-1].microbatches = self.microbatch
            goes_on = self._is_turn_to_come()
        else:
            self.turns.end()
            goes_on = self.turns.at + 1 < len(self.turns.owned) and self.held.waits()
        if goes_on:
            self.turns.at += 1
            self.stepped = False
            return
        self._end_step()
        if self.step == 1:
            self.held.forget()
            self.mode.after_first_step(*self.after_agreement)
            self._announce(self.held.pieces())
        elif self.step == self.mode.steps:
            self._end()

    def _is_turn_to_come(self):
        """True if on every rank optimizers are left to step in the first step. A rank that leaves out an optimizer,
        with which other ranks have stepped, must not wait for a step of this optimizer."""
        if len(self.turns.seen) == MOST_TURNS:
            return False
        subject, is_open = "turn-%d" % self.turns.at, bool(self.turns.idle(self.names))
        self.mailbox.post(subject, is_open)
        return is_open and all(self.mailbox.collect(subject, self.settings["patience"]).values())

    def _end_step(self):
        """Ends the present step: emits its records, and begins the next step."""
        if self.step <= 1:
            # Scripts make new objects mainly in their first steps.
            objects.look_again()
        if self.step == 0:
            self.turns.seen[-1].microbatches = self.microbatch
            self.after_agreement = agreement.agree(self)
            self.update.emit_digests(None, self.initial)
            self._emit_stale(0, 0, self.update.first_stale())
        else:
            self.mode.record(self.step)
            self._record()
        if self.step + 1 < self.mode.steps:
            # The last watched step has no digests, because parameters may not be gathered yet at its end.
            self.softly("parameters", self.update.digest, self.step)
        self.softly("modules", self._see_blocks)
        self.softly("clipping", self.clipping.in_vain.before_backward)
        self.channel.emit("step-ended", step=self.step, microbatches=self.microbatch)
        self.step += 1
        self.microbatch, self.stepped, self.roots, self.terms = 0, False, {}, {}
        self.turns.at = 0
        self.asides.begin()
        self.between.forget()

    def see_reduction(self, tensor):
        """Called before the script itself reduces a tensor over the ranks."""
        self.remarks.see_reduction(tensor, self._own_params())
        if isinstance(tensor, torch.Tensor) and tensor.dim():
            self.clipping.in_vain.see_reduction()

    def see_broadcast(self, tensor, source):
        """Called before the script broadcasts a tensor from the rank `source`. If this rank has called backward, but no
        optimizer has stepped, and the tensor is a parameter, then the rank gets the update of another rank, as from a
        parameter server: the broadcast takes the place of the rank's step."""
        receives = source not in (None, self.rank) and self.microbatch > 0 and not self.stepped
        if receives and any(it.data_ptr() == tensor.data_ptr() for it in self._own_params()):
            self.remarks.receives = True
            if self.step == 0:
                self.turns.step_elsewhere()
            self.stepped = True
            self._end_after_last_step()

    def _own_params(self):
        return [it.tensor for it in self.params.values() if it.tensor is not None and it.trainable]

    def release(self):
        """Removes all hooks and wrappers of zprobe from this process."""
        self.leaves.release()
        self.between.close()
        self.arithmetic.release()
        self.modules.release()
        self.release_outputs()

    def _see_blocks(self):
        """Emits the blocks of the model that ran in the step without being reached by a backward."""
        groups = [group for optimizer in self.turns.stepped for group in optimizer.param_groups]
        known = {id(it) for group in groups for it in group["params"]} & set(self.names)
        held = lambda it: not known or id(it) in known
        blocks = self.modules.unreached(names.roots(), self.names, self.reached, held)
        self.reached = set()
        told = [
            dict(
                module=path,
                kind=kind,
                params=[self.indices[it] for it in lost if it in self.indices],
                read=place,
                unused=unused,
            )
            for path, kind, lost, place, unused in blocks
        ]
        if told:
            self.channel.emit("blocks-unreached", step=self.step, blocks=told)

    def digests(self):
        """For each parameter, by name, the digest that its replicas have in common, and the number of its shard."""
        return {name: param.digest() for name, param in self.params.items()}

    def _record(self):
        self.between.record(self.step)
        self.held.record(self.channel, self.step, self._last_microbatch())

    def _last_microbatch(self):
        return max(min(self.microbatch, self.mode.columns) - 1, 0)

    def _announce(self, pieces):
        """Emits which elements of the optimizers' tensors are recorded."""
        self.channel.emit("layout", layout="partition", segments=pieces, sampled=True)

    # The end of the watch.

    def end_of_script(self):
        """Called when the script ends before the last watched step: emits the records so far."""
        if self.over:
            return
        self.over = True
        self._end_silence()
        if self.stepped:
            self._end_step()
        if self.exit_code:
            self.channel.emit("failed", message="sys.exit(%r)" % (self.exit_code,))
            return
        is_only = self.step == 1 and not self.microbatch and len(self.turns.seen) == 1
        if is_only and self.mode.judges_first_step:
            pieces = self.held.pieces()
            for piece in pieces:
                piece["param"] = self.indices.get(piece["param"])
            self._announce(pieces)
            self.step -= 1
            self._record()
        self._finish()

    def _failed(self, kind, error, trace):
        """Called when the script ends with an exception: emits the failure, then calls the script's own hook."""
        try:
            if not self.over:
                self.over = True
                self._end_silence()
                self.softly("graphs", self.emit_walks)
                if self.step > 0:
                    self.softly("the script's end", self._remark)
                self.channel.emit("failed", message="%s: %s" % (kind.__name__, error))
        finally:
            self.excepthook(kind, error, trace)

    def _exit(self, code=None):
        self.exit_code = code
        self.exit(code)

    def _remark(self):
        """Emits the remarks about the script."""
        if len(self.turns.seen) > 1:
            self.remarks.schedule = None  # With turns, each optimizer may have its own schedule.
        self.softly("optimizers", self.remarks.see_outer_optimizer, self._own_params(), self.turns.stepped)
        self.remarks.idle = [type(it).__name__ for it in self.softly("optimizers", self.turns.idle, self.names) or []]
        late = self.softly("wrapped parameters", wrapped.late) or []
        self.remarks.late = sorted({self.names[id(it)] for it in late if id(it) in self.names})
        self.channel.emit("script-remarked", **self.remarks.fields())

    def _finish(self):
        self.softly("the script's end", self._remark)
        self.between.describe_afterwards()
        self.softly("transforms", self.transforms.release)
        self._end_silence()
        self.channel.emit("finished")

    def _end(self):
        """Ends the watch after the last watched step."""
        self.over = True
        self._finish()
        self.mode.end()


def failure(error):
    """The message for the user about an error of zprobe itself, without the text of `error`, which may quote data."""
    at = traceback.extract_tb(error.__traceback__)[-1]
    place = "%s:%d" % (os.path.basename(at.filename), at.lineno)
    return "zprobe failed in %s: %s at %s; please report this" % (at.name, type(error).__name__, place)
