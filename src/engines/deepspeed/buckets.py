"""The content of DeepSpeed's IPG buckets when they are flushed; afterwards they are always empty."""

import sys

# The method that flushes, by class of the optimizer.
FLUSHES = {
    "DeepSpeedZeroOptimizer": "reduce_ipg_grads",
    "DeepSpeedZeroOptimizer_Stage3": "_DeepSpeedZeroOptimizer_Stage3__reduce_and_partition_ipg_grads",
}

# The method that calls it because the next gradient does not fit.
FULL = "reduce_independent_p_g_buckets_and_remove_grads"


class BucketWatch:
    """Emits an event for each flush."""

    def __init__(self, wrapper, index, channel):
        self.wrapper, self.index, self.channel = wrapper, index, channel
        self.step, self.microbatch, self.flushes = None, None, 0

    def begin(self, step, microbatch):
        """Assigns later flushes to this microbatch."""
        if step != self.step:
            self.flushes = 0
        self.step, self.microbatch = step, microbatch

    def flush(self, full, dtype):
        """Emits the bucket that is about to be flushed, the largest where there are several."""
        elements, params = max((content(bucket) for bucket in self.buckets(dtype)), key=lambda found: found[0])
        params = [self.index[id(p)] for p in map(self.parameter, params) if id(p) in self.index]
        capacity = int(self.wrapper.reduce_bucket_size)
        reason = "oversized" if elements > capacity else "full" if full else "boundary"
        self.channel.emit(
            "bucket-flushed",
            step=self.step,
            microbatch=self.microbatch,
            flush=self.flushes,
            reason=reason,
            elements=int(elements),
            capacity=capacity,
            params=params,
        )
        self.flushes += 1

    def buckets(self, dtype):
        """One bucket for each dtype that is reduced; before 0.17.2 a single one, in attributes."""
        buckets = getattr(self.wrapper, "ipg_buckets", None)
        if buckets is None:
            return [self.wrapper]
        return [buckets[dtype]] if dtype in buckets else list(buckets.values())

    def parameter(self, entry):
        """The parameter of a bucket's entry: itself, or a tuple whose middle is it or its place."""
        if not isinstance(entry, tuple):
            return entry
        group, place, _ = entry
        return self.wrapper.bit16_groups[group][place] if isinstance(place, int) else place


def content(bucket):
    """Elements and entries of a bucket."""
    if hasattr(bucket, "params"):
        return bucket.elements, bucket.params
    return bucket.elements_in_ipg_bucket, bucket.params_in_ipg_bucket


def watch_buckets(wrapper, index, channel, not_observed):
    """Watches the flushes of `wrapper`, DeepSpeed's optimizer; None if it has no buckets."""
    name = FLUSHES.get(type(wrapper).__name__)
    if name is None:
        return None
    function = getattr(wrapper, name, None)
    if function is None:
        not_observed("IPG buckets", "%s has no %s" % (type(wrapper).__name__, name))
        return None
    watch = BucketWatch(wrapper, index, channel)

    def flushing(*args, **kwargs):
        dtype = args[0] if args else kwargs.get("comm_dtype")
        watch.flush(sys._getframe(1).f_code.co_name == FULL, dtype)
        return function(*args, **kwargs)

    setattr(wrapper, name, flushing)
    return watch
