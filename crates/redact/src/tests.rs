//! Tests of the texts that are removed, and of the texts that stay.

use serde_json::{Value, json};

use super::{Kind, Known, Private, Redactor};

fn private() -> Private {
    let variable = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    Private {
        variables: vec![
            variable("MY_API_KEY", "s3cr\"et/va lue"),
            variable("SHORT_TOKEN", "zq"),
            variable("OTHER_TOKEN", "true"),
            variable("NCCL_DEBUG", "INFO-planted"),
        ],
        homes: vec!["/nowhere/alice".into()],
        working_directory: Some("/nowhere/alice/project".into()),
        directories: Vec::new(),
        users: vec!["alice".to_owned(), "rank".to_owned()],
        hosts: vec!["gpu-17.cluster.example".to_owned()],
    }
}

fn redacted(text: &str) -> String {
    Redactor::of_everything(&private(), &Known::default()).text(text)
}

#[test]
fn a_secret_variable_goes_out_in_every_form() {
    use base64::Engine as _;
    let secret = "s3cr\"et/va lue";
    let encode = |text: &str| base64::engine::general_purpose::STANDARD.encode(text);
    for form in [
        secret.to_owned(),
        json!(secret).to_string(),
        "s3cr\\\"et\\/va lue".to_owned(),
        "s3cr%22et%2Fva%20lue".to_owned(),
        "s3cr%22et%2fva%20lue".to_owned(),
        "s3cr%22et/va%20lue".to_owned(),
    ] {
        let text = redacted(&format!("before {form} after"));
        assert!(text.contains("<secret>") && !text.contains("s3cr"), "{form}: {text}");
        assert!(text.starts_with("before ") && text.ends_with(" after"), "{text}");
    }
    // The base64 of the middle of the secret is found, whatever precedes and follows the secret.
    for before in ["", "u", "us", "user:"] {
        let text = redacted(&format!("basic: {}", encode(&format!("{before}{secret}@host"))));
        assert!(text.contains("<secret>"), "{before}: {text}");
    }
}

#[test]
fn tokens_go_out_wherever_they_come_from() {
    for token in [
        concat!("AK", "IAIOSFODNN7EXAMPLE"),
        concat!("gh", "p_0123456789abcdefghijABCDEFGHIJ012345"),
        concat!("github", "_pat_11AAAAAAA0123456789_abcdefghij"),
        concat!("h", "f_abcdefghijklmnopqrstuvwxyz012345"),
        concat!("s", "k-proj-abcdefghijklmnopqrstuvwxyz"),
        concat!("eyJhbGciOi", "JIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.c2lnbmF0dXJl"),
        "-----BEGIN RSA PRIVATE KEY-----\nMIIEow\n-----END RSA PRIVATE KEY-----",
    ] {
        let text = redacted(&format!("(token {token})"));
        assert_eq!(text, "(token <secret>)");
    }
    let key = "0123456789abcdef0123456789abcdef01234567";
    assert_eq!(redacted(&format!("wandb login {key}")), "wandb login <secret>");
    assert_eq!(redacted("https://bob:pw123@host.io/x"), "https://<secret>@<host>/x");
    assert_eq!(
        redacted("Authorization: Bearer abcdefgh12345678"),
        "Authorization: Bearer <secret>"
    );
    assert_eq!(redacted("{'db_password': 'hunter2hunter2'}"), "{'db_password': '<secret>'}");
    assert_eq!(redacted("MY_SECRET=a1b2c3d4e5"), "MY_SECRET=<secret>");
}

#[test]
fn users_hosts_and_places_go_out() {
    for (text, expected) in [
        ("/nowhere/alice/.cache", "<home>/.cache"),
        ("/nowhere/alice/project/train.py:3", "<cwd>/train.py:3"),
        ("%2Fnowhere%2Falice%2F.cache", "<home>%2F.cache"),
        ("\\/nowhere\\/alice\\/.cache", "<home>\\/.cache"),
        ("/home/bob/x and C:\\Users\\carol\\y", "<home>/x and <home>\\y"),
        ("alice@gpu-17 and ALICE_dir", "<user>@<host> and <user>_dir"),
        ("on gpu-17.cluster.example:29500", "on <host>:29500"),
        ("to [node-3.x]:29500, [localhost]:1234", "to [<host>]:29500, [localhost]:1234"),
        (
            "File \"/opt/envs/al/lib/python3.11/site-packages/torch/x.py\", line 3",
            "File \"<python>/lib/python3.11/site-packages/torch/x.py\", line 3",
        ),
        ("File \"/data/a b/c.py\", line 3", "File \"<path>/c.py\", line 3"),
        ("see /scratch/proj/run-1", "see <path>/run-1"),
        ("from 10.1.2.3:29500 or fe80::1ff:fe23:4567:890a", "from <ip>:29500 or <ip>"),
        ("mail dev@example.org", "mail <email>"),
    ] {
        assert_eq!(redacted(text), expected);
    }
}

#[test]
fn harmless_text_survives() {
    for text in [
        "layers.0.attn.weight, rank 1, step 0: [[1, 2], [1, 0]]",
        "torch==2.11.0+cu130 nvidia-cublas-cu12==12.4.5.8, NCCL 2.27.5, glibc 2.36",
        "File \"/usr/lib/python3.11/runpy.py\", line 198, in _run_module_as_main",
        "std::bad_alloc in c10d::add at 12:34:56, sha 0123456789abcdef0123456789abcdef01234567",
        "sorted(params, key=lambda p: p.name); token = tokens[0]; KeyError: 'communication'",
        "https://github.com/deepspeedai/DeepSpeed/pull/7985",
        "a total of malice, 3/4 of /dev/shm, I/O and/or 1e-3",
        "INFO-planted true zq 127.0.0.1 0.0.0.0",
    ] {
        assert_eq!(redacted(text), text);
    }
}

#[test]
fn json_stays_json_and_buffers_stay_as_they_are() {
    let redactor = Redactor::of_everything(&private(), &Known::default());
    let mut value = json!({
        "alice": ["/home/bob/x", 1, null],
        "rank": "rank",
        "payload": {"digest": "44b0cd6e3d926afe", "data": "/home/bob/hf", "dtype": "bf16"},
        "data": "alice",
    });
    redactor.json(&mut value);
    let expected: Value = json!({
        "<user>": ["<home>/x", 1, null],
        "rank": "rank",
        "payload": {"digest": "44b0cd6e3d926afe", "data": "/home/bob/hf", "dtype": "bf16"},
        "data": "<user>",
    });
    assert_eq!(value, expected);
    let counts = redactor.counts();
    assert_eq!((counts[&Kind::User], counts[&Kind::Home], counts.len()), (2, 1, 2));
}

#[test]
fn what_is_redacted_stays_as_it_is() {
    let once = redacted("alice in /nowhere/alice/project, /home/bob/x, 10.1.2.3, a@b.org");
    assert_eq!(redacted(&once), once);
}
