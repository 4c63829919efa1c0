//! `kubectl cdb`.

use std::process::ExitCode;

use clap::Parser;
use cli::arguments::Arguments;

#[tokio::main]
async fn main() -> ExitCode {
    let arguments = match Arguments::try_parse() {
        Ok(arguments) => arguments,
        Err(error) => {
            // clap's own code for a wrong command line, 2, is that of `plan` with changes. An error while printing help is ignored.
            let _ = error.print();
            return if error.use_stderr() {
                ExitCode::FAILURE
            } else {
                ExitCode::SUCCESS
            };
        }
    };
    // If two providers are compiled in, rustls refuses to choose. This is the first call of the process.
    let _ = rustls::crypto::ring::default_provider().install_default();
    match cli::run::run(arguments).await {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            // One line, whatever the cause, without control characters.
            let text = cli::text::plain(&format!("{error:#}"));
            let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
            eprintln!("error: {line}");
            ExitCode::FAILURE
        }
    }
}
