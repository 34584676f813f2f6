"""Reads the content of DeepSpeed's IPG buckets right before a flush, which empties the buckets."""

# The method that flushes buckets, by the class of DeepSpeed's optimizer.
FLUSHES = {
    "DeepSpeedZeroOptimizer": "reduce_ipg_grads",
    "DeepSpeedZeroOptimizer_Stage3": "_DeepSpeedZeroOptimizer_Stage3__reduce_and_partition_ipg_grads",
}

# The method that flushes a bucket because the next gradient does not fit.
FULL = "reduce_independent_p_g_buckets_and_remove_grads"


class Buckets:
    """The IPG buckets of DeepSpeed's optimizer `wrapper`."""

    def __init__(self, wrapper):
        self.wrapper = wrapper

    def content(self, dtype):
        """The number of elements and the parameters of the largest bucket that a flush of `dtype` empties."""
        contents = (content(bucket) for bucket in self._of(dtype))
        elements, entries = max(contents, key=lambda found: found[0])
        return int(elements), [self._parameter(entry) for entry in entries]

    def capacity(self):
        """The capacity of a bucket, in elements."""
        return int(self.wrapper.reduce_bucket_size)

    def reason(self, elements, is_full):
        """The reason for the flush of a bucket with this number of elements. `is_full` is true if the next gradient
        does not fit into the bucket."""
        return "oversized" if elements > self.capacity() else "full" if is_full else "boundary"

    def _of(self, dtype):
        """The buckets that a flush of `dtype` may empty. DeepSpeed has a bucket for each dtype; before 0.17.2 it has
        a single bucket, in attributes of the optimizer."""
        buckets = getattr(self.wrapper, "ipg_buckets", None)
        if buckets is None:
            return [self.wrapper]
        return [buckets[dtype]] if dtype in buckets else list(buckets.values())

    def _parameter(self, entry):
        """The parameter of a bucket's entry. The entry is the parameter, or a tuple with the parameter or its index
        in the middle."""
        if not isinstance(entry, tuple):
            return entry
        group, place, _ = entry
        return self.wrapper.bit16_groups[group][place] if isinstance(place, int) else place


def content(bucket):
    """The number of elements and the list of entries of a bucket."""
    if hasattr(bucket, "params"):
        return bucket.elements, bucket.params
    return bucket.elements_in_ipg_bucket, bucket.params_in_ipg_bucket
