//! On a terminal, under a shell with job control: `leasehold run` (reading, Ctrl-C, Ctrl-Z and `fg`), and the progress of `leasehold ls`.
#![cfg(target_os = "linux")]

mod common;

use std::time::Duration;

use common::{SOON, terminal::Terminal};
use leasehold_testkit::{Flavor, Proxy, Server, wait_until};

/// A single process: a shell that is about to start another one by vfork cannot be stopped until that has happened, and
/// that one may have been stopped by the same Ctrl-Z.
const WORK: &str = "echo ready; exec sleep 100";

#[test]
fn the_command_reads_from_the_terminal_and_the_shell_gets_it_back() {
    let server = Server::start(Flavor::Redis);
    let mut terminal = Terminal::run(
        &server,
        "$leasehold run job -- sh -c 'read a; echo \"<$a>\"'; echo \"status $?\"; read b; echo \"[$b]\"",
    );
    terminal.type_in("hello\n");
    terminal.shows("<hello>");
    terminal.shows("status 0");
    terminal.type_in("again\n");
    terminal.shows("[again]");
}

#[test]
fn ctrl_c_ends_the_command_and_not_the_shell() {
    let server = Server::start(Flavor::Redis);
    let script = format!("$leasehold run job -- sh -c '{WORK}'; echo \"status $?\"");
    let mut terminal = Terminal::run(&server, &script);
    terminal.shows("ready");
    terminal.type_in("\x03");
    terminal.shows("status 130");
}

#[test]
fn ctrl_z_gives_the_terminal_to_the_shell_and_fg_gives_it_back() {
    let server = Server::start(Flavor::Redis);
    let script = format!(
        "$leasehold run job -- sh -c '{WORK}'; echo \"shell\"; read a; echo \"[$a]\"; fg; echo \"status $?\""
    );
    let mut terminal = Terminal::run(&server, &script);
    terminal.shows("ready");
    let command = terminal.foreground();
    terminal.type_in("\x1a");
    terminal.shows("shell");
    terminal.type_in("line\n");
    terminal.shows("[line]");
    // Before that Ctrl-C would end the shell.
    wait_until(SOON, "the command is in the foreground", || {
        terminal.foreground() == command
    });
    terminal.type_in("\x03");
    terminal.shows("status 130");
}

#[test]
fn a_terminal_left_without_echo_by_a_killed_command_is_put_right() {
    let server = Server::start(Flavor::Redis);
    let script =
        "$leasehold run job -- sh -c 'stty -echo; kill -9 $$'; echo \"status $?\"; stty -a";
    let terminal = Terminal::run(&server, script);
    terminal.shows("status 137");
    terminal.shows(" echo ");
}

#[test]
fn what_another_client_wrote_is_shown_and_not_obeyed() {
    let server = Server::start(Flavor::Redis);
    let title = "\u{1b}]0;owned\u{7}\u{9b}31m\u{202e}\nroot:1";
    server.cli(&["HSET", "job", title, "1"]);
    let uuid = "79f0ed8b-09de-46ef-a0c4-2f29a1f5b3c1";
    server.cli(&["HSET", "labelled", &format!("{uuid}:1"), "1"]);
    let label = format!("leasehold:{uuid}:{title}");
    server.cli(&["SET", "leasehold:client:79f0ed8b-09de", &label]);
    let script = "export TERM=xterm; for name in job labelled; do $leasehold status $name; \
        $leasehold run --wait 0 $name -- true; $leasehold status --json $name; done; $leasehold ls; \
        $leasehold unlock --force --yes --kind mutex job; echo the end";
    let terminal = Terminal::run(&server, script);
    terminal.shows("the end");
    let shown = terminal.shown();
    let escaped = r"\u{1b}]0;owned\u{7}\u{9b}31m\u{202e}\u{a}root";
    // The label in the status, in what the waiting run says, and in the list; and what is unlocked.
    assert_eq!(shown.matches(escaped).count(), 4, "{shown:?}");
    for obeyed in ["\u{1b}]", "\u{7}", "\u{9b}", "\u{202e}", "\nroot"] {
        assert!(!shown.contains(obeyed), "{obeyed:?} in {shown:?}");
    }
}

#[test]
fn a_forced_unlock_shows_the_holder_and_asks() {
    let server = Server::start(Flavor::Redis);
    let java = "79f0ed8b-09de-46ef-a0c4-2f29a1f5b3c1:57";
    server.cli(&["HSET", "job", java, "1"]);
    server.cli(&["PEXPIRE", "job", "60000"]);
    let unlock = "$leasehold unlock --force job; echo \"status $?\"";
    let mut terminal = Terminal::run(&server, &format!("{unlock}; {unlock}; {unlock}"));
    terminal.shows("a Java client, thread 57");
    terminal.shows("Take it away? [y/N]");
    assert_eq!(server.cli(&["EXISTS", "job"]), redis::Value::Int(1));
    terminal.type_in("n\n");
    terminal.shows("you said no");
    terminal.shows("status 75");
    // Meanwhile another has it: not the holder that was shown.
    let asked = |terminal: &Terminal| terminal.shown().matches("[y/N]").count();
    wait_until(SOON, "it asks again", || asked(&terminal) == 2);
    let next = "79f0ed8b-09de-46ef-a0c4-2f29a1f5b3c1:58";
    let swap = "redis.call('DEL', KEYS[1]) redis.call('HSET', KEYS[1], ARGV[1], 1) return redis.call('PEXPIRE', KEYS[1], 60000)";
    server.cli(&["EVAL", swap, "1", "job", next]);
    terminal.type_in("y\n");
    wait_until(SOON, "it asks again", || asked(&terminal) == 3);
    assert_eq!(server.cli(&["HEXISTS", "job", next]), redis::Value::Int(1));
    terminal.type_in("y\n");
    terminal.shows("status 0");
    assert_eq!(server.cli(&["EXISTS", "job"]), redis::Value::Int(0));
}

/// On a terminal a process of ours waits for it first, and becomes the command then.
#[test]
fn a_command_that_cannot_be_started_frees_the_name_and_gives_the_terminal_back() {
    let server = Server::start(Flavor::Redis);
    for (program, status) in [("/nonexistent/program", 127), ("/etc/passwd", 126)] {
        let run = format!("$leasehold run --at-least 20s job -- {program}");
        let script = format!("{run}; echo \"status $?\"; read a; echo \"[$a]\"");
        let mut terminal = Terminal::run(&server, &script);
        terminal.shows(&format!("status {status}"));
        assert_eq!(server.cli(&["EXISTS", "job"]), redis::Value::Int(0));
        terminal.type_in("line\n");
        terminal.shows("[line]");
        let shown = terminal.shown();
        let why = format!("cannot run {program}: ");
        assert_eq!(shown.matches(&why).count(), 1, "{shown}");
    }
}

#[test]
fn a_search_that_takes_long_shows_how_far_it_is() {
    let server = Server::start(Flavor::Redis);
    let fill = "for i = 1, 4000 do redis.call('SET', 'key:' .. i, 'value') end";
    server.cli(&["EVAL", fill, "0"]);
    let java = "79f0ed8b-09de-46ef-a0c4-2f29a1f5b3c1:57";
    server.cli(&["HSET", "legacy:sync", java, "1"]);
    let proxy = Proxy::start(server.addr());
    proxy.delay(Duration::from_millis(5));
    let script = format!("$leasehold ls --url {}; echo done", proxy.url());
    let terminal = Terminal::run(&server, &script);
    terminal.shows(" % of the keys, ");
    // The line is gone before the answer is there.
    terminal.shows("\r\x1b[K");
    terminal.shows("never ends !");
    terminal.shows("done");
}
