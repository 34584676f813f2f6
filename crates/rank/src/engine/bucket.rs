//! The IPG bucket, which collects gradients one after the other for a common reduction.
//!
//! The module follows DeepSpeed's `ipg_buffer` and `params_in_ipg_bucket` (`runtime/zero/stage_1_and_2.py`).

use anyhow::Result;
use tch::{Device, Kind, Tensor};

use super::flat::narrow;

/// The gradient bucket of one rank.
pub struct Bucket {
    capacity: usize,
    /// The number of elements that fit into the bucket, limited to the number of elements in the model.
    room: usize,
    kind: Kind,
    device: Device,
    /// The buffers for copies of the gradients: one, or two that alternate (one is reduced while the other is filled).
    /// Empty if gradients stay in place until the flush (`contiguous_gradients: false`).
    buffers: Vec<Tensor>,
    active: usize,
    pieces: Vec<Tensor>,
    params: Vec<usize>,
    elements: usize,
}

/// The content that was taken out of a bucket.
pub struct BucketContents {
    /// The concatenated gradients, in the communication dtype.
    pub wire: Tensor,
    /// The indices of the parameters, in the order of their gradients.
    pub params: Vec<usize>,
}

impl Bucket {
    /// Creates an empty bucket for elements of this kind on this device. `capacity` is the nominal number of elements,
    /// `room` is the number of elements that the bucket accepts, and `most` is the number of elements in the model.
    pub fn new(
        (capacity, room): (usize, usize),
        most: usize,
        (kind, device): (Kind, Device),
        buffers: usize,
    ) -> Result<Self> {
        let room = room.min(most);
        let len = i64::try_from(room)?;
        let buffers = (0..buffers)
            .map(|_| Ok(Tensor::f_empty([len], (kind, device))?))
            .collect::<Result<_>>()?;
        let (pieces, params) = (Vec::new(), Vec::new());
        Ok(Self { capacity, room, kind, device, buffers, active: 0, pieces, params, elements: 0 })
    }

    /// The nominal capacity in elements.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// True if the bucket is empty.
    pub fn is_empty(&self) -> bool {
        self.params.is_empty()
    }

    /// True if a gradient of `numel` elements still fits.
    pub fn fits(&self, numel: usize) -> bool {
        self.elements + numel <= self.room
    }

    /// Adds a parameter's flat gradient to the bucket.
    pub fn put(&mut self, param: usize, gradient: &Tensor) -> Result<()> {
        let numel = gradient.numel();
        if let Some(buffer) = self.buffers.get(self.active) {
            let mut place = narrow(buffer, self.elements..self.elements + numel)?;
            place.f_copy_(gradient)?;
            self.pieces.push(place);
        } else {
            self.pieces.push(self.alone(gradient));
        }
        self.params.push(param);
        self.elements += numel;
        Ok(())
    }

    /// The gradient that was added to the bucket last.
    pub fn last(&self) -> Option<&Tensor> {
        self.pieces.last()
    }

    /// A copy of a gradient in the bucket's dtype, outside of the bucket's buffers.
    pub fn alone(&self, gradient: &Tensor) -> Tensor {
        gradient.to_kind(self.kind).copy()
    }

    /// Empties the bucket and returns its content. With two buffers, the next gradients go into the other buffer.
    pub fn take(&mut self) -> Result<BucketContents> {
        let pieces = std::mem::take(&mut self.pieces);
        let wire = match self.buffers.get(self.active) {
            Some(buffer) => narrow(buffer, 0..self.elements)?,
            None if pieces.is_empty() => Tensor::f_zeros([0], (self.kind, self.device))?,
            None => Tensor::f_cat(&pieces, 0)?,
        };
        self.active = (self.active + 1) % self.buffers.len().max(1);
        self.elements = 0;
        Ok(BucketContents { wire, params: std::mem::take(&mut self.params) })
    }
}
