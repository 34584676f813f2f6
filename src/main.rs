//! The `zprobe` command: from arguments over the journey of the data to the exit code.

mod cli;

fn main() -> std::process::ExitCode {
    cli::main()
}
