//! The `leasehold` command: runs a command under a distributed lock, shows the holders of a name.
//!
//! Reading order: [`args`] is the command line, [`cmd`] has one file per command, [`server`] the server and its certificates,
//! [`kinds`] the kinds of locks, [`exit`] the exit codes.
//! `leasehold run` is [`supervise`] (holds the lock, forwards signals) and [`guardian`], a second process
//! that starts the command and ends it in time, even if the first one dies.

mod args;
mod children;
mod clock;
mod cmd;
mod ending;
mod exit;
mod guardian;
mod held;
mod kinds;
mod life;
mod look;
mod output;
mod server;
mod supervise;
mod terms;
mod trace;

use std::{
    ffi::OsString,
    io::{self, IsTerminal as _},
    os::unix::net::UnixStream,
    process::ExitCode,
};

use args::{Args, Command};
use clap::Parser;
use exit::{Exit, Failure};

fn main() -> ExitCode {
    // Our own helper processes: not for people, so not in the help, and not slowed down by its parser.
    let mut words = std::env::args_os().skip(1);
    match words.next() {
        Some(word) if word == guardian::WORD => return guardian::main(words),
        Some(word) if word == guardian::foreground::WORD => {
            return guardian::foreground::main(words);
        }
        Some(word) if word == cmd::demo::HOST_WORD => return cmd::demo::host_main(),
        Some(word) if word == cmd::drill::WORD => return cmd::drill::child_main(),
        _ => {}
    }
    let args = match Args::try_parse() {
        Ok(args) => args,
        Err(error) => return usage(&error, std::env::args_os()),
    };
    match run(&args) {
        Ok(exit) => exit.into(),
        Err(failure) => {
            output::say(&output::failure(&failure, args.command.json()));
            failure.exit.into()
        }
    }
}

fn run(args: &Args) -> Result<Exit, Failure> {
    room_for_files().map_err(|error| {
        let message = format!(
            "could not open the files that it needs: {error}; allow this process more, as with ulimit -n"
        );
        Failure::new(Exit::Internal, message)
    })?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::internal("start", &error))?;
    let verbose = args.verbose;
    // `top` draws where these lines would stand.
    let draws = matches!(args.command, Command::Top(_)) && io::stderr().is_terminal();
    if !matches!(args.command, Command::Run(_)) && !draws {
        trace::start(verbose, anstream::stderr);
    }
    let ended = runtime.block_on(async {
        match &args.command {
            Command::Demo(args) => cmd::demo::run(args).await,
            Command::Run(args) => cmd::run::run(args, verbose).await,
            Command::Status(args) => cmd::status::run(args).await,
            Command::Ls(args) => cmd::ls::run(args).await,
            #[cfg(feature = "top")]
            Command::Top(args) => cmd::top::run(args).await,
            #[cfg(feature = "serve")]
            Command::Serve(args) => cmd::serve::run(args).await,
            #[cfg(not(feature = "top"))]
            Command::Top(_) => Err(built_without("top")),
            #[cfg(not(feature = "serve"))]
            Command::Serve(_) => Err(built_without("serve")),
            Command::Doctor(args) => cmd::doctor::run(args).await,
            Command::Drill(args) => cmd::drill::run(args).await,
            Command::Unlock(args) => cmd::unlock::run(args).await,
            Command::Completions(args) => cmd::pages::completions(args),
            Command::Man(args) => cmd::pages::man(args),
        }
    });
    // The look-up of a name that no name server answers may go on for half a minute; a user who has ended the command waits for none.
    runtime.shutdown_background();
    ended
}

#[cfg(not(all(feature = "top", feature = "serve")))]
fn built_without(command: &str) -> Failure {
    let message = format!(
        "this program was built without {command}: `cargo install leasehold-cli --features full` makes one that has it"
    );
    Failure::new(Exit::Usage, message)
}

/// Fails where the files that `run` may have open at once cannot be opened (`ulimit -n`). Where it cannot open those for signals,
/// tokio panics; and where there is none left for a connection, it would wait for a server that is not missing.
fn room_for_files() -> io::Result<()> {
    let files: io::Result<Vec<_>> = (0..8).map(|_| UnixStream::pair()).collect();
    files.map(drop)
}

/// Help and version go to stdout and are no mistake; everything else is.
fn usage(error: &clap::Error, words: impl Iterator<Item = OsString>) -> ExitCode {
    let text = error.render().ansi().to_string();
    if error.use_stderr() {
        output::say(output::without_addresses(text, words).trim_end_matches('\n'));
        return Exit::Usage.into();
    }
    match output::print(&text) {
        Ok(()) => Exit::Done.into(),
        Err(failure) => {
            output::say(&output::failure(&failure, false));
            failure.exit.into()
        }
    }
}
