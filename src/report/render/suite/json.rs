//! The suite as JSON.

use crate::report::suite::Suite;

pub(super) fn render(suite: &Suite) -> serde_json::Result<String> {
    suite.to_json()
}
