//! `leasehold completions` and `leasehold man`: pages made of the definition of the command line.

use clap::CommandFactory;

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
    // The commands get their full names, such as leasehold-run.
    whole.build();
    let page = match &args.command {
        None => whole,
        Some(name) => whole
            .find_subcommand(name)
            .cloned()
            .ok_or_else(|| unknown(&whole, name))?,
    };
    let mut text = Vec::new();
    clap_mangen::Man::new(page)
        .render(&mut text)
        .map_err(|error| Failure::internal("write the page", &error))?;
    print(&text)
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
