//! `report.json`.

use super::Report;

pub(super) fn render(report: &Report) -> serde_json::Result<String> {
    report.to_json()
}
