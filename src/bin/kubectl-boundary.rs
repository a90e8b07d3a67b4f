//! The kubectl plugin: `kubectl boundary`.

use std::io::{Write as _, stderr, stdin, stdout};
use std::process::ExitCode;

use boundary_operator::cli::{Cli, run};
use clap::Parser as _;

fn main() -> ExitCode {
    let cli = Cli::parse();
    match run(
        cli,
        &mut stdin().lock(),
        &mut stdout().lock(),
        jiff::Timestamp::now(),
    ) {
        Ok(outcome) => outcome.into(),
        Err(error) => {
            // Where even this can't be written, the exit status is all that is left to say.
            let _ = writeln!(stderr(), "{error}");
            ExitCode::from(2)
        }
    }
}
