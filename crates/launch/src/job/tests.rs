use super::*;

/// Returns the job that these variables describe, in the words that the doctor prints.
fn told(variables: &[(&str, &str)]) -> String {
    let variable = |name: &str| {
        variables.iter().find(|(it, _)| *it == name).map(|(_, value)| (*value).to_owned())
    };
    match variables::read(&JobVariables(&variable)) {
        Ok(Some(job)) => job.to_string(),
        Ok(None) => "by itself".to_owned(),
        Err(unclear) => format!("unclear: {unclear}"),
    }
}

#[test]
fn each_launcher_is_known_by_its_variables() {
    let torchrun = [
        ("RANK", "3"),
        ("WORLD_SIZE", "4"),
        ("LOCAL_RANK", "1"),
        ("LOCAL_WORLD_SIZE", "2"),
        ("TORCHELASTIC_RUN_ID", "none"),
    ];
    let deepspeed = [("RANK", "0"), ("WORLD_SIZE", "2"), ("LOCAL_RANK", "0")];
    let srun = [("SLURM_STEP_ID", "0"), ("SLURM_PROCID", "1"), ("SLURM_NTASKS", "2")];
    let open_mpi = [("OMPI_COMM_WORLD_RANK", "1"), ("OMPI_COMM_WORLD_SIZE", "2")];
    let intel =
        [("PMI_RANK", "2"), ("PMI_SIZE", "4"), ("MPI_LOCALRANKID", "0"), ("MPI_LOCALNRANKS", "2")];
    let kubeflow = [("RANK", "1"), ("WORLD_SIZE", "2"), ("MASTER_ADDR", "job-master-0")];
    let pet = [("PET_NODE_RANK", "1"), ("PET_NNODES", "2")];
    insta::assert_snapshot!(
        [&torchrun[..], &deepspeed, &srun, &open_mpi, &intel, &kubeflow, &pet, &[]]
            .map(told)
            .join("\n")
    );
}

#[test]
fn a_process_that_is_the_only_one_stands_by_itself_except_under_torchrun() {
    let alone = |variables: &[(&str, &str)]| assert_eq!(told(variables), "by itself");
    alone(&[("SLURM_STEP_ID", "0"), ("SLURM_PROCID", "0"), ("SLURM_NTASKS", "1")]);
    alone(&[("OMPI_COMM_WORLD_RANK", "0"), ("OMPI_COMM_WORLD_SIZE", "1")]);
    alone(&[("RANK", "0"), ("WORLD_SIZE", "1"), ("MASTER_ADDR", "here")]);
    // The two cases are a batch script, before and after Slurm gave its step a number.
    alone(&[("SLURM_PROCID", "0"), ("SLURM_NTASKS", "8")]);
    alone(&[("SLURM_STEP_ID", "4294967291"), ("SLURM_PROCID", "0"), ("SLURM_NTASKS", "8")]);
    let torchrun = [("RANK", "0"), ("WORLD_SIZE", "1"), ("LOCAL_RANK", "0")];
    assert!(told(&torchrun).starts_with("rank 0 of 1"), "{}", told(&torchrun));
}

#[test]
fn srun_tells_the_place_on_the_node_by_lists() {
    let on_node = |node: &str, local: &str| {
        let variables = [
            ("SLURM_STEP_ID", "0"),
            ("SLURM_PROCID", "6"),
            ("SLURM_NTASKS", "7"),
            ("SLURM_STEP_TASKS_PER_NODE", "2(x3),1"),
            ("SLURM_NODEID", node),
            ("SLURM_LOCALID", local),
        ];
        let find = |name: &str| variables.iter().find(|it| it.0 == name).map(|it| it.1.to_owned());
        variables::read(&JobVariables(&find)).unwrap().unwrap().on_machine
    };
    assert_eq!(on_node("0", "1"), Some((1, 2)));
    assert_eq!(on_node("2", "0"), Some((0, 2)));
    assert_eq!(on_node("3", "0"), Some((0, 1)));
    assert_eq!(on_node("4", "0"), None);
    assert_eq!(on_node("3", "1"), None);
}

#[test]
fn processes_meet_where_their_launcher_says() {
    let job = |launcher, on_machine| Job {
        launcher,
        index: 0,
        size: 4,
        on_machine,
        evidence: vec![],
        endpoint: None,
    };
    let meet = |job: &Job, given: &[(&str, &str)]| {
        let find = |name: &str| given.iter().find(|it| it.0 == name).map(|it| it.1.to_owned());
        match Endpoint::from_variables(job, &JobVariables(&find)) {
            Ok(endpoint) => format!("{endpoint:?}"),
            Err(unclear) => unclear.to_string(),
        }
    };
    let torch = [("MASTER_ADDR", "node0"), ("MASTER_PORT", "29500")];
    let elastic = [
        torch[0],
        torch[1],
        ("TORCHELASTIC_USE_AGENT_STORE", "True"),
        ("TORCHELASTIC_RUN_ID", "job"),
        ("TORCHELASTIC_RESTART_COUNT", "1"),
    ];
    let slurm = [
        ("SLURM_STEP_NODELIST", "n[3-4]"),
        ("SLURM_JOB_NODELIST", "n[1-4]"),
        ("SLURM_JOB_ID", "17"),
        ("SLURM_STEP_ID", "2"),
    ];
    let open_mpi = [("PMIX_NAMESPACE", "123")];
    insta::assert_snapshot!(
        [
            meet(&job(Launcher::Torchrun, None), &torch),
            meet(&job(Launcher::Torchrun, None), &elastic),
            meet(&job(Launcher::Node, None), &[("PET_RDZV_ENDPOINT", "node0:5")]),
            meet(&job(Launcher::Node, None), &[("PET_RDZV_ENDPOINT", "node0")]),
            meet(&job(Launcher::Srun, None), &slurm),
            meet(&job(Launcher::OpenMpi, Some((0, 4))), &open_mpi),
            meet(&job(Launcher::OpenMpi, Some((0, 2))), &open_mpi),
            meet(&job(Launcher::Torchrun, None), &[torch[0], ("MASTER_PORT", "x")]),
        ]
        .join("\n")
    );
}

#[test]
fn the_innermost_launcher_counts() {
    let srun = [("SLURM_STEP_ID", "0"), ("SLURM_PROCID", "1"), ("SLURM_NTASKS", "2")];
    let inside = |inner: &[(&'static str, &'static str)]| {
        told(&srun.iter().chain(inner).copied().collect::<Vec<_>>())
    };
    let torchrun = inside(&[("RANK", "5"), ("WORLD_SIZE", "8"), ("LOCAL_RANK", "1")]);
    assert!(torchrun.starts_with("rank 5 of 8, started by torchrun"), "{torchrun}");
    // mpirun starts its daemons with srun, while srun itself also offers PMI.
    let mpirun = inside(&[("OMPI_COMM_WORLD_RANK", "3"), ("OMPI_COMM_WORLD_SIZE", "4")]);
    assert!(mpirun.starts_with("rank 3 of 4, started by Open MPI"), "{mpirun}");
    let own = inside(&[("PMI_RANK", "1"), ("PMI_SIZE", "2")]);
    assert!(own.starts_with("rank 1 of 2, started by srun"), "{own}");
}

#[test]
fn variables_that_contradict_each_other_are_named_with_their_values() {
    insta::assert_snapshot!(
        [
            told(&[("RANK", "4"), ("WORLD_SIZE", "4"), ("LOCAL_RANK", "0")]),
            told(&[
                ("RANK", "1"),
                ("WORLD_SIZE", "4"),
                ("LOCAL_RANK", "2"),
                ("LOCAL_WORLD_SIZE", "2")
            ]),
            told(&[("LOCAL_RANK", "0")]),
            told(&[("RANK", "0"), ("LOCAL_RANK", "0")]),
            told(&[("SLURM_STEP_ID", "0"), ("SLURM_PROCID", "1")]),
            told(&[("RANK", "one"), ("WORLD_SIZE", "4"), ("LOCAL_RANK", "0")]),
        ]
        .join("\n")
    );
}
