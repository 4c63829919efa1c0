//! `kubectl cdb`.

use std::process::ExitCode;

use clap::Parser;
use cli::arguments::Arguments;

#[tokio::main]
async fn main() -> ExitCode {
    let arguments = match Arguments::try_parse() {
        Ok(arguments) => arguments,
        Err(error) => {
            // clap's own code for a wrong command line, 2, is what `plan` says with changes. Printing help cannot fail usefully.
            let _ = error.print();
            return if error.use_stderr() {
                ExitCode::FAILURE
            } else {
                ExitCode::SUCCESS
            };
        }
    };
    // Two providers may be compiled in, and rustls then refuses to choose. It is the first call of this process.
    let _ = rustls::crypto::ring::default_provider().install_default();
    match cli::run::run(arguments).await {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            // One line, whatever the cause said, with nothing in it that a terminal obeys.
            let text = cli::text::plain(&format!("{error:#}"));
            let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
            eprintln!("error: {line}");
            ExitCode::FAILURE
        }
    }
}
