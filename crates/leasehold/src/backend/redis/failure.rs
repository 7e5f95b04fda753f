//! The meaning of the redis crate's errors: what the server may hold, and in which words a user is told.

use std::{error::Error, fmt, io, sync::Arc};

use redis::{ErrorKind, RedisError, ServerErrorKind};
use rustix::io::Errno;

use crate::{backend::Failure, error::Cause};

/// Classifies an error by what the server may hold after it.
pub(super) fn classify(error: RedisError) -> Failure {
    let passing = matches!(
        error.kind(),
        ErrorKind::Server(
            ServerErrorKind::BusyLoading
                | ServerErrorKind::ReadOnly
                | ServerErrorKind::MasterDown
                | ServerErrorKind::ClusterDown
                | ServerErrorKind::TryAgain
        )
    ) || matches!(
        code(&error),
        // The last: a server that waited for its replicas has become one itself.
        Some("BUSY" | "OOM" | "NOREPLICAS" | "MISCONF" | "READONLY" | "UNBLOCKED")
    );
    let answered = matches!(
        error.kind(),
        ErrorKind::Server(_)
            | ErrorKind::Extension
            | ErrorKind::AuthenticationFailed
            // A reply of the wrong shape is an answer all the same: the request was carried out, and another try gets the same.
            | ErrorKind::UnexpectedReturnType
    );
    let cause = in_words(error);
    if passing {
        Failure::NotNow(cause)
    } else if answered {
        Failure::Rejected(cause)
    } else {
        // An error of the connection or of the protocol says nothing of what the server did before.
        Failure::Ambiguous(cause)
    }
}

/// The code of a refusal. Redis 6 wraps that of a command in a script into an error of the script, whose code is `ERR` (bug 323).
fn code(error: &RedisError) -> Option<&str> {
    let wrapped = |detail: &&str| detail.starts_with("Error running script");
    let within = error.detail().filter(wrapped).map(without_script);
    let within = within.and_then(|said| said.strip_prefix('-')?.split(' ').next());
    within.or(error.code())
}

/// The server is a replica, perhaps by now.
pub(super) fn is_read_only(error: &RedisError) -> bool {
    code(error) == Some("READONLY")
}

/// The server refuses every request, for now.
pub(super) fn refuses_all(error: &RedisError) -> bool {
    matches!(
        error.code(),
        Some("LOADING" | "BUSY" | "MASTERDOWN" | "CLUSTERDOWN")
    )
}

/// The server has as many clients as it may, and may have fewer soon.
pub(super) fn is_full(error: &RedisError) -> bool {
    let detail = error.detail().unwrap_or_default();
    error.code() == Some("ERR") && detail.starts_with("max number of clients")
}

/// An error that is none of the server's: this process, or this machine, has as many files open as it may.
pub(super) fn of_this_process(error: &RedisError) -> Option<io::Error> {
    // The redis crate shares the error of the system with its copies.
    let shared: &Arc<dyn Error + Send + Sync> = error.source()?.downcast_ref()?;
    let errno = Errno::from_io_error(shared.downcast_ref()?)?;
    matches!(errno, Errno::MFILE | Errno::NFILE).then(|| errno.into())
}

/// An error as a cause that speaks to the users of this library, not to those of the redis crate.
pub(super) fn in_words(error: RedisError) -> Cause {
    Arc::new(InWords {
        words: words(&error),
        error,
    })
}

/// The words for an error. The error itself may repeat a secret that was sent.
struct InWords {
    words: String,
    error: RedisError,
}

/// The server's own words behind a cause, if they are.
pub(super) fn said(cause: &Cause) -> Option<&RedisError> {
    cause.downcast_ref::<InWords>().map(|said| &said.error)
}

impl fmt::Display for InWords {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.words)
    }
}

impl fmt::Debug for InWords {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = self.error.kind();
        write!(f, "{} ({kind:?})", self.words)
    }
}

// Without a source: the redis crate's words would be printed behind these.
impl Error for InWords {}

/// The end of a message about a right that the user of the server lacks.
pub(super) const RIGHTS: &str =
    "leasehold's docs/keys.md lists the commands, keys and channels that a user needs";

/// It refuses to select a database.
pub(super) fn has_no_database(error: &RedisError) -> bool {
    error.detail().is_some_and(|detail| {
        detail.contains("DB index is out of range") || detail.contains(ONLY_DATABASE_0)
    })
}

/// Of a node of a cluster.
const ONLY_DATABASE_0: &str = "SELECT is not allowed in cluster mode";

fn words(error: &RedisError) -> String {
    // A server that does not know `AUTH` or `HELLO` repeats what stood behind it.
    let said = error.detail().map(without_script).unwrap_or_default();
    let detail = said
        .split(", with args beginning with")
        .next()
        .unwrap_or_default();
    let said = match error.code() {
        Some("NOPERM") => {
            return format!("the server's user lacks a right: {detail} (NOPERM); {RIGHTS}");
        }
        Some("NOAUTH") => {
            "the server wants a password (NOAUTH); put user:password@ before the host of the URL, or ?user=…&pass=… behind the path of a Unix socket"
        }
        Some("WRONGPASS") => {
            "the server refuses the user name or the password (WRONGPASS); correct them in the URL, or where the program gives them"
        }
        Some("LOADING") => "the server is still loading its data (LOADING); wait until it has",
        Some("BUSY") => {
            "the server is busy with a script of another client (BUSY); wait for it, or end it with SCRIPT KILL"
        }
        Some("NOREPLICAS") => {
            "the server has too few replicas that keep up with it (NOREPLICAS); see to them, or lower its min-replicas-to-write"
        }
        Some("MISCONF") => {
            "the server cannot save its data, and takes no writes (MISCONF); its log says why"
        }
        Some("WRONGTYPE") => {
            return format!(
                "{detail} (WRONGTYPE); use another name, or the same kind of lock in all programs"
            );
        }
        Some("OOM") => "the server's memory is full (OOM); raise its maxmemory",
        // Only a client of a single server comes to show these: one of a cluster follows them (`cluster/redirect.rs`).
        Some("MOVED" | "ASK") => {
            return format!(
                "the name is kept by another node of the cluster ({detail}); give redis-cluster://host:port, with any of its nodes"
            );
        }
        Some("TRYAGAIN") => {
            "the slot of the name is being moved to another node of the cluster (TRYAGAIN); wait until it is there, or end the move with redis-cli --cluster fix"
        }
        Some("CLUSTERDOWN") => {
            "the cluster serves no requests, or not for the slot of this name (CLUSTERDOWN); see to its nodes"
        }
        Some("READONLY") => {
            "the server is a replica, which takes no writes (READONLY); connect to its primary"
        }
        Some("MASTERDOWN") => {
            "the server is a replica that has lost its primary (MASTERDOWN); connect to a primary"
        }
        Some("ERR") if is_full(error) => {
            "the server has as many clients as it takes; raise its maxclients, or open fewer connections"
        }
        Some("ERR") if detail.contains("DB index is out of range") => {
            "the server has no database of this number; take one below its `databases`, of which there are 16 unless it says otherwise"
        }
        Some("ERR") if detail.contains(ONLY_DATABASE_0) => {
            "the server is a node of a cluster, which has database 0 alone; leave the number out, and give redis-cluster://host:port, with any of its nodes"
        }
        // A script of ours says it as an error of the script on older servers.
        Some("ERR")
            if detail.contains("permission") || detail.contains("executing the script can't") =>
        {
            return format!("the server's user lacks a right: {detail}; {RIGHTS}");
        }
        Some(code) if detail.is_empty() => return format!("the server refuses it ({code})"),
        Some("ERR") => return format!("the server refuses it: {detail}"),
        Some(code) => return format!("{detail} ({code})"),
        None => return words_of_the_client(error, detail),
    };
    said.to_owned()
}

/// Of what the redis crate says, and no server.
fn words_of_the_client(error: &RedisError, detail: &str) -> String {
    let said = match error.kind() {
        ErrorKind::AuthenticationFailed => {
            "the server refuses the user name or the password; correct them in the URL, or where the program gives them"
        }
        ErrorKind::UnexpectedReturnType => {
            return format!("the server's answer is none that this version knows: {detail}");
        }
        ErrorKind::Parse => "the server's answer is not in Redis' protocol",
        ErrorKind::Io if error.is_connection_refusal() => {
            "no server listens there; start it, or check host and port"
        }
        ErrorKind::Io if error.is_connection_dropped() => "the connection broke",
        kind => {
            let text = error.to_string();
            let text = text.split(" (os error").next().unwrap_or_default();
            return text.replace(&format!(" - {kind:?}"), "");
        }
    };
    said.to_owned()
}

/// A refusal without the script in which it came up: the hash is no word.
fn without_script(detail: &str) -> &str {
    let detail = detail.trim_start_matches("ACL failure in script: ");
    let detail = match detail.rsplit_once(" script: ") {
        Some((said, place)) if place.contains("on @user_script:") => said,
        _ => detail,
    };
    // Redis 6: "Error running script (call to f_…): @user_script:12: @user_script: 12: …"
    let detail = match detail.rsplit_once("@user_script:") {
        Some((_, rest)) => rest.split_once(": ").map_or(rest, |(_line, said)| said),
        None => detail,
    };
    detail.trim_end_matches('.').trim_end()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn server(code: &str, detail: &str) -> String {
        let error = redis::make_extension_error(code.to_owned(), Some(detail.to_owned()));
        in_words(error).to_string()
    }

    #[test]
    fn a_refusal_is_told_without_the_hash_of_a_script() {
        let hash = "a4a8a2a5c3e1f0";
        let newer = format!("the name is held as a mutex script: {hash}, on @user_script:12.");
        assert_eq!(
            server("WRONGTYPE", &newer),
            "the name is held as a mutex (WRONGTYPE); use another name, or the same kind of lock in all programs"
        );
        let older = format!(
            "Error running script (call to f_{hash}): @user_script:12: @user_script: 12: no such thing"
        );
        assert_eq!(server("ODD", &older), "no such thing (ODD)");
        let valkeys = "ACL failure in script: User x has no permissions script: on @user_script:2.";
        let said = server("ERR", valkeys);
        assert!(
            said.contains("lacks a right: User x has no permissions;"),
            "{said}"
        );
        for lacks in [
            "run this command or subcommand",
            "access at least one of the keys mentioned in the command arguments",
            "publish to the channel mentioned in the command",
        ] {
            let lacks = format!("The user executing the script can't {lacks}");
            let redis_7_0 = format!("{lacks} script: {hash}, on @user_script:1.");
            for detail in [&lacks, &redis_7_0] {
                let said = server("ERR", detail);
                let says = format!("lacks a right: {lacks}; {RIGHTS}");
                assert!(said.ends_with(&says), "{said}");
            }
        }
    }

    /// Bug 323: else a demoted Redis 6 refuses for good, and a release is not repeated.
    #[test]
    fn what_redis_6_wraps_into_an_error_of_the_script_passes_all_the_same() {
        let wrapped = |said: &str| {
            let detail = format!(
                "Error running script (call to f_ab): @user_script:12: @user_script: 12: {said}"
            );
            redis::make_extension_error("ERR".to_owned(), Some(detail))
        };
        let read_only = "-READONLY You can't write against a read only replica.";
        assert!(is_read_only(&wrapped(read_only)));
        for said in [
            read_only,
            "-OOM command not allowed when used memory > 'maxmemory'.",
            "-MISCONF Redis is configured to save RDB snapshots, but it is currently not able to persist on disk.",
            "-NOREPLICAS Not enough good replicas to write.",
        ] {
            let failure = classify(wrapped(said));
            assert!(matches!(failure, Failure::NotNow(_)), "{failure:?}");
        }
        for said in ["-WRONGTYPE of a list", "no such thing"] {
            let failure = classify(wrapped(said));
            assert!(matches!(failure, Failure::Rejected(_)), "{failure:?}");
        }
    }

    #[test]
    fn what_stood_behind_an_unknown_command_is_not_repeated() {
        let detail = "unknown command 'AUTH', with args beginning with: 'me', 'hush', ";
        let error = redis::make_extension_error("ERR".to_owned(), Some(detail.to_owned()));
        let cause = in_words(error);
        let said = format!("{cause} {cause:?}");
        assert!(said.contains("'AUTH'") && !said.contains("hush"), "{said}");
    }

    #[test]
    fn a_right_that_is_missing_points_to_the_list_of_rights() {
        let said = server(
            "NOPERM",
            "User x has no permissions to run the 'evalsha' command",
        );
        assert!(
            said.contains("'evalsha'") && said.contains("docs/keys.md"),
            "{said}"
        );
    }

    #[test]
    fn a_lack_of_files_is_told_apart_from_what_the_server_does() {
        for (errno, is_ours) in [
            (Errno::MFILE, true),
            (Errno::NFILE, true),
            (Errno::CONNREFUSED, false),
        ] {
            let error = RedisError::from(io::Error::from(errno));
            assert_eq!(of_this_process(&error).is_some(), is_ours, "{errno}");
        }
    }

    #[test]
    fn words_of_the_redis_crate_are_not_shown() {
        let refused = std::io::Error::from(std::io::ErrorKind::ConnectionRefused);
        let config = (
            ErrorKind::InvalidClientConfig,
            "could not resolve to any addresses",
        );
        for (error, said) in [
            (
                RedisError::from(refused),
                "no server listens there; start it, or check host and port",
            ),
            (
                RedisError::from(config),
                "could not resolve to any addresses",
            ),
        ] {
            assert_eq!(in_words(error).to_string(), said);
        }
    }
}
