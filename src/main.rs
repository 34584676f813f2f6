//! The `zprobe` command: arguments → journey → exit code.

mod cli;

fn main() -> std::process::ExitCode {
    cli::main()
}
