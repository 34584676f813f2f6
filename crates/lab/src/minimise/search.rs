//! The search for the smallest configuration that still shows a finding: it chooses the configuration to try next,
//! and ends when no smaller one is left.
//!
//! Delta debugging (Zeller and Hildebrandt, *Simplifying and isolating failure-inducing input*, 2002): settings other
//! than the defaults are left out, at first all at once, then in ever smaller groups; then numbers are made smaller,
//! the smallest value first. The search ends when every single reduction loses the finding. Nothing is run here: the
//! caller runs the configurations and looks for the finding.

use std::collections::HashMap;

use zprobe_model::spec::{RunSpec, SpecRequest};
use zprobe_report::Trial;

pub use super::reductions::Reduction;
use super::reductions::{self, left_out, smaller};

/// The result of a search.
#[derive(Clone, Debug)]
pub struct Smallest {
    /// The smallest configuration that was found.
    pub request: SpecRequest,
    /// True if every reduction of the configuration was tried; false if the limit of runs ended the search.
    pub complete: bool,
    /// The configurations that were tried, in order.
    pub trials: Vec<Trial>,
}

/// Searches for the smallest configuration that still shows the finding of `ask`, starting from `start`.
///
/// `resolve` fills in the defaults, and returns `None` for a configuration that cannot be run. `ask` is called at
/// most `limit` times, and never twice for the same configuration.
///
/// # Errors
/// The errors of `ask`, which end the search.
pub fn minimise<E>(
    start: SpecRequest,
    resolve: &dyn Fn(&SpecRequest) -> Option<RunSpec>,
    limit: usize,
    ask: &mut dyn FnMut(&str, &RunSpec) -> Result<Trial, E>,
) -> Result<Smallest, E> {
    let mut search =
        Minimiser { request: start, resolve, limit, known: HashMap::new(), trials: vec![] };
    search.forget_defaults();
    loop {
        let left_out = search.leave_out(ask)?;
        let smaller = search.make_smaller(ask)?;
        let is_used_up = search.is_used_up();
        if is_used_up || !(left_out || smaller) {
            search.forget_defaults();
            let Minimiser { request, trials, .. } = search;
            return Ok(Smallest { request, complete: !is_used_up, trials });
        }
    }
}

/// The state of a search for the smallest configuration.
struct Minimiser<'a> {
    request: SpecRequest,
    resolve: &'a dyn Fn(&SpecRequest) -> Option<RunSpec>,
    limit: usize,
    /// The known answers, by configuration as JSON: true if the configuration still shows the finding.
    known: HashMap<String, bool>,
    trials: Vec<Trial>,
}

/// Runs a configuration, which a change has made smaller, to find out whether it still shows the finding.
type Ask<'a, E> = &'a mut dyn FnMut(&str, &RunSpec) -> Result<Trial, E>;

impl Minimiser<'_> {
    fn is_used_up(&self) -> bool {
        self.trials.len() >= self.limit
    }

    /// Leaves out ever smaller groups of settings. Returns true if any setting could be left out.
    fn leave_out<E>(&mut self, ask: Ask<'_, E>) -> Result<bool, E> {
        let mut any = false;
        let mut size = left_out(&self.request).len();
        while size > 0 {
            let mut at = 0;
            loop {
                let parts = left_out(&self.request);
                let Some(group) = parts.get(at..parts.len().min(at + size)) else { break };
                if group.is_empty() {
                    break;
                }
                if self.accepts(group, ask)? {
                    any = true;
                } else {
                    at += size;
                }
            }
            size /= 2;
        }
        Ok(any)
    }

    /// Makes numbers smaller. Returns true if any number could be made smaller.
    fn make_smaller<E>(&mut self, ask: Ask<'_, E>) -> Result<bool, E> {
        let mut any = false;
        for axis in 0..reductions::NUMBERS.len() {
            let Some(spec) = (self.resolve)(&self.request) else { return Ok(any) };
            for reduction in smaller(axis, &spec) {
                if self.accepts(&[reduction], ask)? {
                    any = true;
                    break;
                }
            }
        }
        Ok(any)
    }

    /// Tries the configuration with these reductions, and continues from it if it still shows the finding. Returns
    /// true if it does.
    fn accepts<E>(&mut self, reductions: &[Reduction], ask: Ask<'_, E>) -> Result<bool, E> {
        let mut request = self.request.clone();
        for reduction in reductions {
            reduction.apply(&mut request);
        }
        let (Some(before), Some(spec)) = ((self.resolve)(&self.request), (self.resolve)(&request))
        else {
            return Ok(false);
        };
        let key = serde_json::to_string(&spec).unwrap_or_default();
        let still = match self.known.get(&key) {
            _ if spec == before => true,
            Some(still) => *still,
            None if self.is_used_up() => false,
            None => {
                let changes: Vec<&str> = reductions.iter().map(Reduction::description).collect();
                let change = changes.join(", ");
                let trial = ask(&change, &spec)?;
                let still = trial.kept;
                self.known.insert(key, still);
                self.trials.push(trial);
                still
            }
        };
        if still {
            self.request = request;
        }
        Ok(still)
    }

    /// Removes every flag from the request that only repeats the default.
    fn forget_defaults(&mut self) {
        let Some(spec) = (self.resolve)(&self.request) else { return };
        for part in reductions::all_flags(&self.request) {
            let mut request = self.request.clone();
            part.apply(&mut request);
            if (self.resolve)(&request).is_some_and(|it| it == spec) {
                self.request = request;
            }
        }
    }
}
