//! The check of the job that this process is part of, as its launcher describes the job.

use super::{CheckState, DoctorCheck};
use zprobe_launch::job::{Job, JobRendezvous, UnclearRank};

const SUBJECT: &str = "job";

/// The check of the launcher that started this process, if one did, and of the endpoint where the processes meet.
pub fn job(
    described: &Result<Option<Job>, UnclearRank>,
    meeting: Option<Result<JobRendezvous, UnclearRank>>,
) -> DoctorCheck {
    let broken = |what: String| {
        DoctorCheck::not(
            SUBJECT,
            CheckState::Broken,
            what,
            "`zprobe run` refuses to start with these variables: correct them, or unset the variables of an earlier \
             job",
        )
    };
    match (described, meeting) {
        (Err(unclear), _) => broken(unclear.to_string()),
        (Ok(Some(job)), Some(Err(unclear))) => broken(format!("{job}; {unclear}")),
        (Ok(Some(job)), Some(Ok(meeting))) => {
            DoctorCheck::ok(SUBJECT, format!("{job}; its processes meet at {}", meeting.endpoint))
        }
        (Ok(_), _) => DoctorCheck::ok(
            SUBJECT,
            "this process is the only one: no launcher has set its variables",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use zprobe_launch::job::{Endpoint, Launcher};

    #[test]
    fn a_job_is_understood_or_its_contradiction_is_said() {
        let one = Job {
            launcher: Launcher::OpenMpi,
            index: 1,
            size: 2,
            on_machine: None,
            evidence: vec![("OMPI_COMM_WORLD_RANK", "1".to_owned())],
            endpoint: None,
        };
        let endpoint = Endpoint::At { host: "node1".to_owned(), port: 29500 };
        let meeting = JobRendezvous { endpoint, token: String::new() };
        let nowhere = UnclearRank::NoEndpoint { launcher: Launcher::OpenMpi };
        let missing = UnclearRank::Missing { present: "RANK", missing: "WORLD_SIZE" };
        let lines = [
            job(&Ok(None), None),
            job(&Ok(Some(one.clone())), Some(Ok(meeting))),
            job(&Ok(Some(one)), Some(Err(nowhere))),
            job(&Err(missing), None),
        ];
        let lines = lines.map(|it| format!("{} {}: {}", it.state, it.subject, it.detail));
        insta::assert_snapshot!(lines.join("\n"));
    }
}
