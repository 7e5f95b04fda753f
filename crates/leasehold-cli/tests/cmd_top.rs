//! `leasehold top`: a live list on a terminal, and text elsewhere.
#![cfg(all(target_os = "linux", feature = "top"))]

mod common;

use common::{Notes, Process, SOON, leasehold, run, stdout, terminal::Terminal};
use leasehold_testkit::{Flavor, Server, wait_until};
use rustix::process::{Signal, kill_process_group};

const NAME: &str = "库存:雨伞";

/// A process that holds [`NAME`], whose label the server has.
fn holder(server: &Server) -> Process {
    let mut command = leasehold(&server.url());
    let holder = Process::start(command.args(["run", NAME, "sleep", "100"]));
    wait_until(SOON, "the server has its label", || {
        let status = leasehold(&server.url()).args(["status", NAME]).output();
        stdout(&status.unwrap()).contains("alive")
    });
    holder
}

/// A terminal in which `top` runs; behind it the shell says whether the terminal is as before.
fn top(server: &Server, notes: &Notes) -> Terminal {
    let script = format!(
        "before=$(stty -g); echo $$ >{}; $leasehold top; echo \"ended $?\"; \
         [ \"$before\" = \"$(stty -g)\" ] && echo as before; read line",
        notes.sh("shell")
    );
    let terminal = Terminal::run(server, &script);
    terminal.resize(100, 24);
    notes.wait("shell");
    terminal
}

#[test]
fn a_lock_is_shown_while_it_is_held_and_the_terminal_is_given_back() {
    let server = Server::start(Flavor::Redis);
    let notes = Notes::new();
    let mut terminal = top(&server, &notes);
    terminal.sees("0 locks");
    let mut holder = holder(&server);
    terminal.sees(NAME);
    // The list stands on a screen of its own, which is left at the end.
    terminal.shows("\u{1b}[?1049h");
    terminal.type_in("\r");
    terminal.sees("alive: its client is connected");
    // A key of the picture of one lock leads back to the list, and not out of it.
    terminal.type_in("\u{1b}");
    terminal.sees("sorted by name");
    holder.signal(Signal::TERM);
    holder.code();
    terminal.sees("no locks");
    terminal.type_in("q");
    terminal.shows("\u{1b}[?1049l");
    terminal.sees("ended 0");
    terminal.sees("as before");
}

#[test]
fn a_filter_and_an_order_are_typed() {
    let server = Server::start(Flavor::Redis);
    let notes = Notes::new();
    let _holder = holder(&server);
    let other = notes.sh("up");
    let _other = Process::start(&mut run(
        &server.url(),
        &[],
        &format!("echo >{other}; sleep 100"),
    ));
    notes.wait("up");
    let mut terminal = top(&server, &notes);
    terminal.sees("2 locks");
    terminal.type_in("s");
    terminal.sees("time held");
    terminal.type_in("/雨");
    terminal.sees("filter: 雨");
    // A letter that is typed into the filter is no command.
    terminal.type_in("q");
    terminal.sees("no lock is like the filter");
    terminal.type_in("\u{7f}\r");
    terminal.sees("/ changes it");
    // Ctrl-C ends it from anywhere.
    terminal.type_in("\u{3}");
    terminal.sees("ended 0");
    terminal.sees("as before");
}

#[test]
fn a_signal_ends_it_and_the_terminal_is_given_back() {
    let server = Server::start(Flavor::Redis);
    let notes = Notes::new();
    let terminal = top(&server, &notes);
    terminal.sees("0 locks");
    kill_process_group(terminal.foreground(), Signal::TERM).unwrap();
    terminal.sees("ended 143");
    terminal.sees("as before");
}

#[test]
fn a_terminal_that_is_too_small_is_told_so_until_it_is_larger() {
    let server = Server::start(Flavor::Redis);
    let notes = Notes::new();
    let terminal = top(&server, &notes);
    terminal.sees("0 locks");
    terminal.resize(20, 5);
    terminal.sees("40 × 6 at least");
    terminal.resize(200, 50);
    terminal.sees("sorted by name");
}

#[test]
fn a_server_that_is_away_is_told_and_its_return_seen() {
    let mut server = Server::start(Flavor::Redis);
    let notes = Notes::new();
    let terminal = top(&server, &notes);
    terminal.sees("0 locks");
    server.kill();
    terminal.sees("no server listens there");
    server.restart();
    terminal.sees("0 locks");
}

#[test]
fn without_a_terminal_the_list_is_printed_once() {
    let server = Server::start(Flavor::Redis);
    let said = |words: &[&str]| {
        let output = leasehold(&server.url()).args(words).output().unwrap();
        assert!(output.status.success());
        stdout(&output)
    };
    assert!(
        said(&["top"]).starts_with("0 locks · round "),
        "{}",
        said(&["top"])
    );
    let _holder = holder(&server);
    let shown = said(&["top", "--once", "库存:*"]);
    let lines: Vec<&str> = shown.lines().collect();
    assert!(
        lines[0].starts_with("NAME") && lines[1].starts_with(NAME),
        "{shown}"
    );
    assert!(lines[2].starts_with("1 lock · oldest "), "{shown}");
    assert_eq!(said(&["top", "--once", "order:*"]).lines().count(), 1);
}
