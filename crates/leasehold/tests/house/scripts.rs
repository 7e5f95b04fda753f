//! The header of each script is its contract: this checks that it is there and names what the script uses.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

fn scripts() -> Vec<(PathBuf, String)> {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("src/backend/redis/scripts");
    let mut scripts = Vec::new();
    let mut folders = vec![folder];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "lua") {
                let text = fs::read_to_string(&path).unwrap();
                scripts.push((path, text));
            }
        }
    }
    assert!(scripts.len() >= 7, "found only {}", scripts.len());
    scripts
}

/// The header without its comment marks, and the code.
fn split(text: &str) -> (String, String) {
    let lines = text.lines().take_while(|line| line.starts_with("--"));
    let header: Vec<&str> = lines.map(|line| line.trim_start_matches("--")).collect();
    let code = text.lines().skip(header.len());
    let code: Vec<&str> = code.filter(|line| !line.trim().starts_with("--")).collect();
    (header.join("\n"), code.join("\n"))
}

/// `KEYS[1]`, `ARGV[2]` … that a text mentions.
fn arguments(text: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for list in ["KEYS[", "ARGV["] {
        for (at, _) in text.match_indices(list) {
            let rest = &text[at..];
            let end = rest.find(']').expect("a closed bracket");
            found.insert(rest[..=end].to_owned());
        }
    }
    found
}

/// A part that the scripts of a folder share is written in front of those that use it, and has no contract of its own.
fn is_shared(path: &Path) -> bool {
    [
        "waiting.lua",
        "forced.lua",
        "refuse.lua",
        "hand_over.lua",
        "holder_hash.lua",
        "holder_string.lua",
        "free_hash.lua",
        "free_string.lua",
        "left_hash.lua",
        "others_hash.lua",
        "others_string.lua",
        "contended.lua",
        "released.lua",
        "holders.lua",
        "take.lua",
        "places.lua",
        "queue.lua",
        "pool.lua",
        "number.lua",
        "tokens.lua",
        "fence.lua",
        "line.lua",
        "queue.lua",
    ]
    .iter()
    .any(|shared| path.ends_with(shared))
}

/// The keys and arguments that a script uses by calling functions of the shared parts of its folder, and by what those call.
fn used_by_shared_parts(path: &Path, code: &str) -> BTreeSet<String> {
    let mut functions: Vec<String> = Vec::new();
    for (shared, text) in scripts() {
        let of_all = [
            "scripts/waiting.lua",
            "scripts/refuse.lua",
            "scripts/places.lua",
            "number/number.lua",
        ];
        if is_shared(&shared)
            && (shared.parent() == path.parent()
                || of_all.iter().any(|of_all| shared.ends_with(of_all)))
        {
            let (_, text) = split(&text);
            if shared.ends_with("line.lua") {
                // Its arguments are read once, in front of its functions.
                let (begin, _) = text.split_once("local function ").expect("functions");
                functions.push(format!("pass_on({begin}"));
                functions.push(format!("next_in_line({begin}"));
            }
            // The long ways are functions as a whole.
            for (of, long) in [
                ("acquire.lua", "contended.lua"),
                ("release.lua", "released.lua"),
            ] {
                if path.ends_with(of) && shared.ends_with(long) {
                    functions.push(format!("contended({}", text.replace("function ", "")));
                }
            }
            let parts = text.split("function ").skip(1);
            functions.extend(parts.map(|part| part.split("\nend").next().unwrap().to_owned()));
        }
    }
    let mut called = code.to_owned();
    let mut used = BTreeSet::new();
    loop {
        let (now, later): (Vec<_>, Vec<_>) = functions.into_iter().partition(|function| {
            let name = &function[..=function.find('(').expect("parameters")];
            called.contains(name)
        });
        if now.is_empty() {
            return used;
        }
        for function in now {
            used.extend(arguments(&function));
            called += &function;
        }
        functions = later;
    }
}

#[test]
fn every_script_says_what_it_takes_returns_and_why_a_second_copy_does_no_harm() {
    for (path, text) in scripts() {
        let (header, code) = split(&text);
        let (shared, file) = (is_shared(&path), path.clone());
        let path = path.display();
        let name = path.to_string();
        let name = name.rsplit_once("scripts/").unwrap().1.to_owned();
        assert!(
            header.trim_start().starts_with(&name),
            "{path}: begins with its name"
        );
        if shared {
            continue;
        }
        assert!(
            header.contains("\n Returns "),
            "{path}: says what it returns"
        );
        assert!(
            header.contains("\n Retry "),
            "{path}: says whether it may be sent twice"
        );
        let (documented, mut used) = (arguments(&header), arguments(&code));
        used.extend(used_by_shared_parts(&file, &code));
        if code.contains("#KEYS") || code.contains("#ARGV") {
            continue; // as many as the caller likes
        }
        assert_eq!(
            documented, used,
            "{path}: header and code name different arguments"
        );
    }
}

#[test]
fn what_the_server_may_refuse_comes_before_what_deletes() {
    for (path, text) in scripts() {
        let (_, code) = split(&text);
        // Per branch: after a DEL nothing may be called that an ACL or maxmemory can refuse.
        for (at, _) in code.match_indices("call('DEL'") {
            let rest = &code[at..];
            let end = rest
                .find("return")
                .into_iter()
                .chain(rest.find("\nend\n"))
                .min()
                .expect("a script returns after it deletes, or a function ends");
            for refusable in ["PUBLISH", "HSET", "'SET'", "RPUSH"] {
                assert!(
                    !rest[..end].contains(refusable),
                    "{}: {refusable} after DEL: an error there would hide that the name is free",
                    path.display()
                );
            }
        }
    }
}

/// A command that is not asked for in advance could be refused in the middle of a script.
#[test]
fn each_command_of_a_script_is_among_the_rights_that_a_client_asks_for() {
    let asks = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("src/backend/redis/rights.rs");
    let asks = fs::read_to_string(asks).unwrap();
    for (path, text) in scripts() {
        for part in text.split("call('").skip(1) {
            let command = part.split('\'').next().unwrap();
            let is_apart = ["PUBLISH", "PUBSUB", "DBSIZE"].contains(&command);
            assert!(
                is_apart
                    || asks
                        .split(|c: char| !c.is_ascii_uppercase())
                        .any(|word| word == command),
                "{}: {command}",
                path.display()
            );
        }
    }
}

/// Else a script for sharded channels would publish on a classic one, which no one hears there.
#[test]
fn each_word_for_a_channel_stands_in_quotes() {
    for (path, text) in scripts() {
        let (_, code) = split(&text);
        for word in ["PUBLISH", "NUMSUB"] {
            let all = code.matches(word).count();
            let quoted = code.matches(&*format!("'{word}'")).count();
            assert_eq!(all, quoted, "{}: {word}", path.display());
        }
    }
}
