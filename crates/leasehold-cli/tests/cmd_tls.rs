//! The command over TLS: certificates from the options, from the environment, from the system.

mod common;

use std::{ffi::OsStr, fs, os::unix::ffi::OsStrExt};

use common::{code, leasehold, stderr, stdout};
use leasehold_testkit::{Authority, Flavor, Server, TlsFiles};

/// A server that wants a client certificate, and the options that satisfy it.
struct World {
    server: Server,
    ca: String,
    cert: String,
    key: String,
}

fn world() -> World {
    let authority = Authority::new("the authority");
    let files = TlsFiles::new(authority.signs(&["localhost"]), &authority);
    let files = files.wants_client_certificate();
    let server = Server::start_with_tls(Flavor::Redis, &files, &[]);
    let (ca, _) = authority.own().write(server.dir(), "ca");
    let (cert, key) = authority.signs(&["worker"]).write(server.dir(), "worker");
    let [ca, cert, key] = [ca, cert, key].map(|path| path.display().to_string());
    World {
        server,
        ca,
        cert,
        key,
    }
}

#[test]
fn every_command_takes_its_certificates_from_options() {
    let world = world();
    let url = world.server.tls_url("localhost");
    let options = [
        "--tls-ca",
        &world.ca,
        "--tls-cert",
        &world.cert,
        "--tls-key",
        &world.key,
    ];
    let mut run = leasehold(&url);
    run.arg("run").args(options);
    let run = run.args(["job", "--", "true"]).output().unwrap();
    assert_eq!(code(run.status), 0, "{}", stderr(&run));
    for words in [
        &["status", "job"][..],
        &["unlock", "--force", "job"],
        &["demo", "--json", "--url", &url],
    ] {
        let mut command = leasehold(&url);
        let output = command.args(words).args(options).output().unwrap();
        assert_eq!(code(output.status), 0, "{words:?}: {}", stderr(&output));
    }
}

#[test]
fn a_certificate_may_be_for_another_name_than_the_urls_if_that_is_given() {
    let world = world();
    let url = world
        .server
        .tls_url("127.0.0.1")
        .replace("rediss:", "REDISS:");
    let command = || {
        let mut command = leasehold(&url);
        command
            .args(["status", "job"])
            .env("LEASEHOLD_TLS_CA", &world.ca)
            .env("LEASEHOLD_TLS_CERT", &world.cert)
            .env("LEASEHOLD_TLS_KEY", &world.key);
        command
    };
    let refused = command().output().unwrap();
    assert_eq!(code(refused.status), 77, "{}", stderr(&refused));
    assert!(
        stderr(&refused).contains("--tls-server-name"),
        "{}",
        stderr(&refused)
    );
    let option = command().args(["--tls-server-name", "localhost"]).output();
    let variable = command()
        .env("LEASEHOLD_TLS_SERVER_NAME", "localhost")
        .output();
    for output in [option.unwrap(), variable.unwrap()] {
        assert_eq!(code(output.status), 0, "{}", stderr(&output));
    }
}

#[test]
fn certificates_of_the_environment_count_where_the_url_speaks_tls() {
    let world = world();
    let mut status = leasehold(&world.server.tls_url("localhost"));
    status
        // The authorities of this system, as the system's administrator would set them.
        .env("SSL_CERT_FILE", &world.ca)
        .env("LEASEHOLD_TLS_CA", "")
        .env("LEASEHOLD_TLS_CERT", &world.cert)
        .env("LEASEHOLD_TLS_KEY", &world.key);
    let output = status.args(["status", "job"]).output().unwrap();
    assert_eq!(code(output.status), 0, "{}", stderr(&output));
    assert!(stdout(&output).contains("free"), "{}", stdout(&output));

    // A file's name need not be UTF-8.
    let odd = world.server.dir().join(OsStr::from_bytes(b"\xff.pem"));
    fs::copy(&world.ca, &odd).unwrap();
    status
        .env_remove("SSL_CERT_FILE")
        .env("LEASEHOLD_TLS_CA", odd);
    let output = status.output().unwrap();
    assert_eq!(code(output.status), 0, "{}", stderr(&output));

    let mut plain = leasehold(&world.server.url());
    let plain = plain.env("LEASEHOLD_TLS_CA", &world.ca);
    let output = plain.args(["status", "job"]).output().unwrap();
    assert_eq!(code(output.status), 0, "{}", stderr(&output));
}

#[test]
fn what_is_wrong_with_tls_is_told_with_the_option_that_repairs_it() {
    let world = world();
    let tls = world.server.tls_url("localhost");
    let (ca, cert) = (world.ca.as_str(), world.cert.as_str());
    for (url, options, expected, words) in [
        (&tls, &[][..], 77, "--tls-ca"),
        (&tls, &["--tls-ca", ca], 77, "--tls-cert and --tls-key"),
        (
            &tls,
            &["--tls-ca", ca, "--tls-cert", cert],
            64,
            "without --tls-key",
        ),
        (&tls, &["--tls-ca", "/not/there.pem"], 64, "/not/there.pem"),
        (&world.server.url(), &["--tls-ca", ca], 64, "rediss://"),
    ] {
        let mut command = leasehold(url);
        let output = command
            .args(["status", "job"])
            .args(options)
            .output()
            .unwrap();
        let said = stderr(&output);
        assert_eq!(code(output.status), expected, "{said}");
        assert!(said.contains(words), "{said}");
    }
}

#[test]
fn certificates_of_the_environment_count_for_every_scheme_that_speaks_tls() {
    for scheme in [
        "rediss",
        "valkeys",
        "redlocks",
        "rediss-sentinel",
        "valkeys-sentinel",
        "rediss-cluster",
        "valkeys-cluster",
        "REDISS-Cluster",
    ] {
        let mut command = leasehold(&format!(
            "{scheme}://127.0.0.1:1,127.0.0.1:2,127.0.0.1:3/?master=main"
        ));
        if scheme == "rediss" || scheme == "valkeys" {
            command.env("LEASEHOLD_URL", format!("{scheme}://127.0.0.1:1/"));
        } else if !scheme.ends_with("sentinel") {
            command.env(
                "LEASEHOLD_URL",
                format!("{scheme}://127.0.0.1:1,127.0.0.1:2,127.0.0.1:3"),
            );
        }
        let output = command
            .env("LEASEHOLD_TLS_CA", "/not/there.pem")
            .args(["status", "--connect-timeout", "100ms", "job"])
            .output()
            .unwrap();
        let said = stderr(&output);
        assert!(
            code(output.status) == 64 && said.contains("/not/there.pem"),
            "{scheme}: {said}"
        );
    }
}

#[test]
fn a_pinned_key_is_taken_from_the_option_and_from_the_environment() {
    let world = world();
    let url = world.server.tls_url("127.0.0.1");
    let status = |pins: &str, by_option: bool| {
        let mut command = leasehold(&url);
        command.args([
            "status",
            "job",
            "--tls-cert",
            &world.cert,
            "--tls-key",
            &world.key,
        ]);
        if by_option {
            command.args(["--tls-pin", pins]);
        } else {
            command.env("LEASEHOLD_TLS_PIN", pins);
        }
        let output = command.output().unwrap();
        (code(output.status), stderr(&output))
    };
    let wrong = "00".repeat(32);
    let (code, said) = status(&wrong, true);
    assert!(code == 77 && said.contains(&wrong), "{said}");
    let is = said
        .split("public key is ")
        .nth(1)
        .unwrap()
        .split(',')
        .next()
        .unwrap();
    for by_option in [true, false] {
        let (code, said) = status(&format!("{wrong},{is}"), by_option);
        assert_eq!(code, 0, "{said}");
        assert_eq!(status("hush", by_option).0, 64);
    }
}
