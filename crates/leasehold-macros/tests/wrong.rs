//! Wrong uses of `#[locked]`: each error stands at the wrong token, and says what would do.
//!
//! `tests/wrong/*.stderr` are the compiler's words, to be read. `TRYBUILD=overwrite cargo test -p leasehold-macros --test wrong` writes them anew.

use std::process::Command;

/// The compiler whose words these are: others say some of it differently.
const COMPILER: &str = "rustc 1.95.";

#[test]
fn wrong_uses_are_refused_at_their_token() {
    let version = Command::new("rustc").arg("--version").output();
    let version = version.map(|told| String::from_utf8_lossy(&told.stdout).into_owned());
    if !version.is_ok_and(|version| version.starts_with(COMPILER)) {
        println!("skipped: the texts are those of {COMPILER}");
        return;
    }
    trybuild::TestCases::new().compile_fail("tests/wrong/*.rs");
}
