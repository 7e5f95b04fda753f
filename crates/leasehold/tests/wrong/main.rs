//! Wrong uses of `#[locked]`: each error stands at the wrong token, and says what would do.
//!
//! `uses/*.txt` are the compiler's words, to be read. `LEASEHOLD_UPDATE=1 cargo test -p leasehold --test wrong` writes them anew. The
//! compiler is asked about each file by itself, with the library that was built for this test. (trybuild would build all of the
//! library's dependencies once more, for a minute.)

use std::{
    env,
    ffi::OsStr,
    fmt::Write,
    fs,
    path::{Path, PathBuf},
    process::Command,
    time::SystemTime,
};

use serde_json::Value;

/// The compiler whose words these are: others say some of it differently.
const COMPILER: &str = "rustc 1.95.";

fn rustc() -> Command {
    Command::new(env::var_os("RUSTC").unwrap_or_else(|| "rustc".into()))
}

/// The newest build of the library, in the folder that this test is in.
fn library(deps: &Path) -> PathBuf {
    let of_library = |path: &PathBuf| {
        let name = path.file_name().and_then(OsStr::to_str).unwrap_or("");
        name.starts_with("libleasehold-") && path.extension() == Some(OsStr::new("rlib"))
    };
    let all = fs::read_dir(deps)
        .unwrap()
        .map(|entry| entry.unwrap().path());
    let built = |path: &PathBuf| {
        fs::metadata(path)
            .and_then(|of| of.modified())
            .unwrap_or(SystemTime::UNIX_EPOCH)
    };
    all.filter(of_library)
        .max_by_key(built)
        .expect("the library was built")
}

/// What the compiler says of a file: each message, where it stands, and its notes.
fn said(file: &Path, deps: &Path, library: &Path) -> String {
    let out = env::temp_dir().join(format!("leasehold-wrong-{}", std::process::id()));
    fs::create_dir_all(&out).unwrap();
    let told = rustc()
        .args([
            "--edition=2024",
            "--crate-type=bin",
            "--emit=metadata",
            "--error-format=json",
        ])
        .args(["--out-dir".as_ref(), out.as_os_str()])
        .arg(format!("-Ldependency={}", deps.display()))
        .arg(format!("--extern=leasehold={}", library.display()))
        .arg(file)
        .output()
        .unwrap();
    let _ = fs::remove_dir_all(&out);
    assert!(!told.status.success(), "{} compiles", file.display());
    let mut text = String::new();
    for line in String::from_utf8_lossy(&told.stderr).lines() {
        let message: Value = serde_json::from_str(line).unwrap();
        let level = message["level"].as_str().unwrap();
        let says = message["message"].as_str().unwrap();
        if says.starts_with("aborting due to") || level == "failure-note" {
            continue;
        }
        writeln!(text, "{level}: {says}").unwrap();
        point(&mut text, &message, file);
        for child in message["children"].as_array().unwrap() {
            let (level, says) = (
                child["level"].as_str().unwrap(),
                child["message"].as_str().unwrap(),
            );
            // Lists of what implements a trait change with the libraries.
            if !says.contains("other types implement") && !says.contains("full name for the type") {
                writeln!(text, "  = {level}: {}", says.lines().next().unwrap()).unwrap();
            }
        }
        text.push('\n');
    }
    // With the feature `blocking` there are two types of this name.
    text.replace("&leasehold::Client", "&Client")
}

/// The lines of the file that a message is about, with its marks.
fn point(text: &mut String, message: &Value, file: &Path) {
    for span in message["spans"].as_array().unwrap() {
        if !file.ends_with(span["file_name"].as_str().unwrap()) {
            continue;
        }
        let number = |key: &str| usize::try_from(span[key].as_u64().unwrap()).unwrap();
        let line = &span["text"][0];
        let shown = line["text"].as_str().unwrap();
        let begin = number("column_start");
        let end = if number("line_start") == number("line_end") {
            number("column_end")
        } else {
            shown.chars().count() + 1
        };
        let mark = if span["is_primary"].as_bool().unwrap() {
            "^"
        } else {
            "-"
        };
        let marks = mark.repeat((end - begin).max(1));
        let label = span["label"].as_str().unwrap_or("");
        writeln!(text, "{:>4} | {shown}", number("line_start")).unwrap();
        let pointed = format!("     | {}{marks} {label}", " ".repeat(begin - 1));
        writeln!(text, "{}", pointed.trim_end()).unwrap();
    }
}

#[test]
fn wrong_uses_are_refused_at_their_token() {
    let version = rustc().arg("--version").output();
    let version = version.map(|told| String::from_utf8_lossy(&told.stdout).into_owned());
    if !version.is_ok_and(|version| version.starts_with(COMPILER)) {
        println!("skipped: the texts are those of {COMPILER}");
        return;
    }
    let deps = env::current_exe().unwrap().parent().unwrap().to_owned();
    let library = library(&deps);
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/wrong/uses");
    let mut files: Vec<PathBuf> = fs::read_dir(&folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    files.retain(|file| file.extension().is_some_and(|end| end == "rs"));
    files.sort();
    assert!(files.len() >= 16, "{}", files.len());
    let mut differ = Vec::new();
    for file in &files {
        let said = said(file, &deps, &library);
        let expected = file.with_extension("txt");
        if env::var_os("LEASEHOLD_UPDATE").is_some() {
            fs::write(&expected, &said).unwrap();
        } else if fs::read_to_string(&expected).unwrap_or_default() != said {
            differ.push(format!("{}:\n{said}", file.display()));
        }
    }
    assert!(differ.is_empty(), "{}", differ.join("\n"));
}
