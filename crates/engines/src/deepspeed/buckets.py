"""The content of DeepSpeed's IPG buckets when they are flushed; afterwards they are always empty."""

# The method that flushes, by class of the optimizer.
FLUSHES = {
    "DeepSpeedZeroOptimizer": "reduce_ipg_grads",
    "DeepSpeedZeroOptimizer_Stage3": "_DeepSpeedZeroOptimizer_Stage3__reduce_and_partition_ipg_grads",
}

# The method that calls it because the next gradient does not fit.
FULL = "reduce_independent_p_g_buckets_and_remove_grads"


class Buckets:
    """The buckets of DeepSpeed's optimizer `wrapper`."""

    def __init__(self, wrapper):
        self.wrapper = wrapper

    def content(self, dtype):
        """Number of elements, and the parameters, of the bucket that a flush of `dtype` is about: the largest where
        there are several."""
        contents = (content(bucket) for bucket in self._of(dtype))
        elements, entries = max(contents, key=lambda found: found[0])
        return int(elements), [self._parameter(entry) for entry in entries]

    def capacity(self):
        """Elements for which a bucket has room."""
        return int(self.wrapper.reduce_bucket_size)

    def reason(self, elements, is_full):
        """The reason why a bucket with this number of elements is flushed. `is_full` is true if the next gradient does
        not fit into the bucket."""
        return "oversized" if elements > self.capacity() else "full" if is_full else "boundary"

    def _of(self, dtype):
        """One bucket for each dtype that is reduced; before 0.17.2 a single one, in attributes."""
        buckets = getattr(self.wrapper, "ipg_buckets", None)
        if buckets is None:
            return [self.wrapper]
        return [buckets[dtype]] if dtype in buckets else list(buckets.values())

    def _parameter(self, entry):
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
