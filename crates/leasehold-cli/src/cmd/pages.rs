//! `leasehold completions` and `leasehold man`: pages made of the definition of the command line.

use clap::{CommandFactory, builder::Resettable};

use crate::{
    args::{Args, Completions, Man},
    exit::{Exit, Failure},
    output,
};

pub(crate) fn completions(args: &Completions) -> Result<Exit, Failure> {
    let mut text = Vec::new();
    clap_complete::generate(args.shell, &mut Args::command(), "leasehold", &mut text);
    print(&text)
}

pub(crate) fn man(args: &Man) -> Result<Exit, Failure> {
    let mut whole = Args::command().disable_help_subcommand(true);
    let exit_status = whole.get_after_help().map(ToString::to_string);
    // The commands get their full names, such as leasehold-run.
    whole.build();
    let page = match &args.command {
        None => whole,
        Some(name) => whole
            .find_subcommand(name)
            .cloned()
            .ok_or_else(|| unknown(&whole, name))?,
    };
    // The exit status has a section of its own here.
    let more = page.get_after_help().map(ToString::to_string);
    let page = match more.as_deref().map(|more| more.split(EXIT_STATUS).next()) {
        Some(Some("") | None) | None => page.after_help(Resettable::Reset),
        Some(Some(more)) => page.after_help(more.trim_end().to_owned()),
    };
    let mut text = Vec::new();
    clap_mangen::Man::new(page)
        .render(&mut text)
        .map_err(|error| Failure::internal("write the page", &error))?;
    let exit_status = exit_status.unwrap_or_default();
    section(
        &mut text,
        "EXIT STATUS",
        exit_status.trim_start_matches(EXIT_STATUS),
    );
    section(&mut text, "ENVIRONMENT", ENVIRONMENT);
    section(&mut text, "SEE ALSO", SEE_ALSO);
    print(&text)
}

const EXIT_STATUS: &str = "Exit status:\n";

const ENVIRONMENT: &str = "\
LEASEHOLD_URL, REDIS_URL
       the server, if --url is not given; the first that is set
LEASEHOLD_PREFIX
       stands before each name on the server, if --prefix is not given
LEASEHOLD_TLS_CA, LEASEHOLD_TLS_CERT, LEASEHOLD_TLS_KEY, LEASEHOLD_TLS_PIN, LEASEHOLD_TLS_SERVER_NAME
       as the options of these names
LEASEHOLD_NAME, LEASEHOLD_TOKEN, LEASEHOLD_VALID_UNTIL
       are set for the command of leasehold run";

const SEE_ALSO: &str = "\
leasehold(1), leasehold-run(1), leasehold-status(1), leasehold-ls(1), leasehold-unlock(1), leasehold-doctor(1), flock(1)
https://github.com/leasehold/leasehold";

/// Lines as they are: of no line of ours the first character is one that troff reads.
fn section(page: &mut Vec<u8>, title: &str, lines: &str) {
    page.extend(format!(".SH \"{title}\"\n.nf\n{}\n.fi\n", lines.replace('-', "\\-")).bytes());
}

fn unknown(whole: &clap::Command, name: &str) -> Failure {
    let commands: Vec<&str> = whole
        .get_subcommands()
        .map(clap::Command::get_name)
        .collect();
    Failure::new(
        Exit::Usage,
        format!(
            "there is no command {name:?}; there are {}",
            commands.join(", ")
        ),
    )
}

fn print(text: &[u8]) -> Result<Exit, Failure> {
    output::print(&String::from_utf8_lossy(text))?;
    Ok(Exit::Done)
}
