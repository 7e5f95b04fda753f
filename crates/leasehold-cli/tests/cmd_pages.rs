//! `leasehold completions` and `leasehold man`.

mod common;

use std::{
    fs::File,
    io::{self, Write},
    process::{Command, Stdio},
};

use common::{Notes, code, leasehold, stderr, stdout};
use leasehold_testkit::{Flavor, Server};

const NOWHERE: &str = "redis://127.0.0.1:1/";

fn page(words: &[&str]) -> String {
    let output = leasehold(NOWHERE).args(words).output().unwrap();
    assert_eq!(code(output.status), 0, "{words:?}: {}", stderr(&output));
    stdout(&output)
}

#[test]
fn bash_takes_the_completions_and_completes_with_them() {
    let notes = Notes::new();
    notes.write("completions", &page(&["completions", "bash"]));
    let bash = |flags: &[&str]| {
        let output = Command::new("bash").args(flags).output().unwrap();
        assert_eq!(code(output.status), 0, "{}", stderr(&output));
        assert_eq!(stderr(&output), "");
        stdout(&output)
    };
    bash(&["--norc", "-n", &notes.sh("completions")]);
    let complete = |line: &[&str]| {
        let script = format!(
            "source {}; COMP_WORDS=({}); COMP_CWORD={}; _leasehold leasehold {:?} {:?}; echo ${{COMPREPLY[@]}}",
            notes.sh("completions"),
            line.join(" "),
            line.len() - 1,
            line[line.len() - 1],
            line[line.len() - 2],
        );
        bash(&["--norc", "-c", &script])
    };
    assert_eq!(complete(&["leasehold", "sta"]), "status\n");
    assert!(complete(&["leasehold", "run", "--at"]).contains("--at-least"));
    assert!(complete(&["leasehold", "run", "--kind", "fe"]).contains("fenced"));
}

#[test]
fn the_other_shells_have_completions_too() {
    for (shell, word) in [
        ("zsh", "#compdef leasehold"),
        ("fish", "complete -c leasehold"),
    ] {
        let text = page(&["completions", shell]);
        assert!(text.contains(word) && text.contains("at-least"), "{shell}");
    }
    let output = leasehold(NOWHERE)
        .args(["completions", "ksh"])
        .output()
        .unwrap();
    assert_eq!(code(output.status), 64);
    assert!(stderr(&output).contains("bash"), "{}", stderr(&output));
}

#[test]
fn each_command_has_a_man_page() {
    for (words, title, says) in [
        (&["man"][..], "leasehold", "completions"),
        (&["man", "run"], "leasehold-run", "at\\-least"),
        (&["man", "status"], "leasehold-status", "quiet"),
        (&["man", "ls"], "leasehold-ls", "older"),
        (&["man", "doctor"], "leasehold-doctor", "strict"),
        (&["man", "drill"], "leasehold-drill", "report"),
        (&["man", "unlock"], "leasehold-unlock", "force"),
        (&["man", "demo"], "leasehold-demo", "seed"),
    ] {
        let text = page(words);
        assert!(text.contains(&format!(".TH {title} 1")), "{text}");
        assert!(text.contains(says), "no {says} in {text}");
        for once in [
            "EXIT STATUS",
            "ENVIRONMENT",
            "SEE ALSO",
            "CMD was not found",
        ] {
            assert_eq!(text.matches(once).count(), 1, "{once} in {text}");
        }
    }
    let output = leasehold(NOWHERE).args(["man", "nope"]).output().unwrap();
    assert_eq!(code(output.status), 64);
    assert!(stderr(&output).contains("unlock"), "{}", stderr(&output));
}

/// Wrapped, by `man` too, it would lose its indentation. And no option stands under the heading of others.
#[test]
fn the_help_of_a_run_fits_a_page() {
    let help = page(&["run", "--help"]);
    let examples = &help[help.find("\nExamples:").unwrap()..];
    for line in examples.lines() {
        assert!(line.chars().count() <= 70, "{line}");
    }
    for words in [
        ["run", "--help"],
        ["status", "--help"],
        ["ls", "--help"],
        ["doctor", "--help"],
        ["drill", "--help"],
        ["unlock", "--help"],
        ["demo", "--help"],
    ] {
        let help = page(&words);
        let options = &help[help.find("\nOptions:").unwrap()..];
        let end = options.find("\nTLS, ").unwrap_or(options.len());
        assert!(options[..end].contains("--json"), "{help}");
    }
}

/// Where it cannot be written, and where the reader has seen enough.
#[test]
fn an_answer_that_cannot_be_printed_is_a_failure_in_words() {
    let server = Server::start(Flavor::Redis);
    for words in [
        &["status", "job"][..],
        &["status", "--json", "job"],
        &["unlock", "--force", "job"],
        &["unlock", "--force", "--json", "job"],
        &["completions", "bash"],
        &["man", "run"],
        &["--help"],
        &["--version"],
        &["demo"],
    ] {
        let Ok(full) = File::options().write(true).open("/dev/full") else {
            println!("skipped: there is no /dev/full");
            return;
        };
        let output = leasehold(&server.url()).args(words).stdout(full).output();
        let output = output.unwrap();
        let said = stderr(&output);
        assert_eq!(code(output.status), 70, "{words:?}: {said}");
        assert!(said.contains("standard output"), "{words:?}: {said}");
        assert_eq!(said.lines().count(), 1, "{words:?}: {said}");
        if words == ["demo"] {
            continue;
        }
        let (_, closed) = io::pipe().unwrap();
        let output = leasehold(&server.url()).args(words).stdout(closed).output();
        let output = output.unwrap();
        assert_eq!((code(output.status), stderr(&output)), (0, String::new()));
    }
}

/// Only where there is a program to read them with.
#[test]
fn a_man_page_renders_without_complaint() {
    for words in [&["man"][..], &["man", "run"]] {
        let mut groff = Command::new("groff");
        groff.args(["-man", "-Tutf8", "-ww", "-z"]);
        let child = groff
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn();
        let Ok(mut child) = child else {
            println!("skipped: there is no groff");
            return;
        };
        let mut stdin = child.stdin.take().unwrap();
        stdin.write_all(page(words).as_bytes()).unwrap();
        drop(stdin);
        let output = child.wait_with_output().unwrap();
        assert_eq!(code(output.status), 0);
        assert_eq!(stderr(&output), "");
    }
}
