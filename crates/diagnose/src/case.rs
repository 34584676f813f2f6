//! The case that rules look at: the events of a run, its plan, and everything that was read from its buffers.

use std::cell::OnceCell;

use crate::decode::Decoded;
use crate::deviation::Deviation;
use crate::displaced::Displacement;
use crate::missing::UnseenElements;
use crate::norm::PlannedNorms;
use crate::observed::Observed;
use crate::placement::ModelPlacement;
use crate::race::FirstDifference;
use zprobe_model::spec::Plan;

/// A recorded run with everything that the rules may look at.
pub struct Case<'a> {
    /// The events of the trace, sorted by topic.
    pub observed: Observed<'a>,
    /// The plan of where every gradient should have gone.
    pub plan: Plan,
    /// The placement of the parameters on the ranks.
    pub placement: ModelPlacement,
    /// The elements that were not seen in any rank's optimizer.
    pub missing: UnseenElements,
    /// The norms that the gradients must have.
    pub norms: PlannedNorms,
    /// The contribution weights that were read from the buffers.
    pub decoded: Decoded,
    /// The deviations of the optimizer's input from the plan.
    pub deviations: Vec<Deviation>,
    /// True if the ranks of a script train separately, as in local SGD, so that their gradients need not be averaged.
    pub is_apart: bool,
    /// The first moment at which repeats of this run differ from it; `None` if all repeats agree, or if the run was
    /// not repeated.
    pub repeats: Option<&'a FirstDifference>,
    /// The displacements that explain deviations, once `displacement::displacements` has searched for them.
    pub displacements: OnceCell<Vec<Displacement>>,
}
