//! The documents: their links lead to files that are there, and the two READMEs show the same code.

use std::{
    fs,
    path::{Path, PathBuf},
};

fn root() -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    root.canonicalize().unwrap()
}

fn documents(dir: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(dir).unwrap() {
        let entry = entry.unwrap();
        let (name, kind) = (entry.file_name(), entry.file_type().unwrap());
        let is_hidden = name.to_string_lossy().starts_with('.') && name != *".github";
        if kind.is_dir() && !is_hidden && name != *"target" {
            documents(&entry.path(), found);
        } else if kind.is_file() && entry.path().extension().is_some_and(|ext| ext == "md") {
            found.push(entry.path()); // what is linked is looked at where it is
        }
    }
}

/// The text between each `open` and the next `close`.
fn between<'a>(text: &'a str, open: &str, close: &[char]) -> Vec<&'a str> {
    let parts = text.split(open).skip(1);
    parts.filter_map(|part| part.split(close).next()).collect()
}

/// The heading's anchor, as GitHub makes it.
fn anchor(heading: &str) -> String {
    let kept = heading.chars().filter_map(|c| match c {
        ' ' => Some('-'),
        '-' | '_' => Some(c),
        c if c.is_alphanumeric() => Some(c.to_ascii_lowercase()),
        _ => None,
    });
    kept.collect()
}

#[test]
fn every_link_leads_to_a_file_that_is_there() {
    let mut found = Vec::new();
    documents(&root(), &mut found);
    let mut dead = Vec::new();
    for document in &found {
        let text = fs::read_to_string(document).unwrap();
        let mut links = between(&text, "](", &[')']);
        links.extend(between(&text, "]: ", &['\n', ' ']));
        links.extend(between(&text, "srcset=\"", &['"']));
        links.extend(between(&text, "src=\"", &['"']));
        for link in links {
            let is_path = link
                .chars()
                .all(|c| c.is_alphanumeric() || "-_./#".contains(c));
            if link.is_empty() || !is_path {
                continue; // an address, or code that looks like a link
            }
            let (path, section) = link.split_once('#').unwrap_or((link, ""));
            let target = match path {
                "" => document.clone(),
                path => document.parent().unwrap().join(path),
            };
            let is_there = target.exists()
                && (section.is_empty() || {
                    let text = fs::read_to_string(&target).unwrap();
                    let mut headings = text.lines().filter(|line| line.starts_with('#'));
                    headings.any(|line| anchor(line.trim_start_matches('#').trim()) == section)
                });
            if !is_there {
                dead.push(format!("{}: {link}", document.display()));
            }
        }
    }
    assert!(found.len() > 10, "{found:?}");
    assert!(dead.is_empty(), "{dead:#?}");
}

/// The package's README is shown on crates.io, where a relative link leads nowhere; and its code, which is tested as documentation, is
/// that of the repository's.
#[test]
fn a_readme_of_a_package_stands_on_its_own() {
    let read = |path: &str| fs::read_to_string(root().join(path)).unwrap();
    for package in ["leasehold", "leasehold-cli", "leasehold-testkit"] {
        let text = read(&format!("crates/{package}/README.md"));
        let mut links = between(&text, "](", &[')']);
        links.extend(between(&text, "]: ", &['\n']));
        for link in links {
            assert!(link.starts_with("https://"), "{package}: {link}");
        }
    }
    let code = |path: &str| {
        let text = read(path);
        let code = text.split("```rust,no_run\n").nth(1).unwrap();
        code.split("```").next().unwrap().to_owned()
    };
    assert_eq!(code("README.md"), code("crates/leasehold/README.md"));
    assert!(code("README.md").lines().count() <= 12);
}

/// The Chinese pages show the code of the English ones, which is compiled, with comments and printed words of their own.
#[test]
fn the_translations_show_the_same_code() {
    let code = |path: &str| {
        let text = fs::read_to_string(root().join(path)).unwrap();
        let blocks = text.split("```").skip(1).step_by(2);
        let bare = |line: &str| match (line.find("//"), line.find("println!")) {
            (_, Some(_)) => "println!".to_owned(),
            (Some(at), None) if !line.contains("redis://127") => line[..at].trim().to_owned(),
            (Some(_), None) => line.rsplit_once("//").unwrap().0.trim().to_owned(),
            (None, None) => line.trim().to_owned(),
        };
        let lines = blocks.flat_map(str::lines).map(bare);
        lines.collect::<Vec<_>>()
    };
    assert_eq!(code("README.md"), code("README.zh-CN.md"));
    assert_eq!(
        code("docs/from-redisson.md"),
        code("docs/zh/from-redisson.md")
    );
}

/// Lines as they are, but for their indentation.
fn flat(code: &str) -> String {
    code.lines().map(str::trim).collect::<Vec<_>>().join("\n")
}

/// The blocks of code that begin with `open`, flat.
fn blocks(text: &str, open: &str) -> Vec<String> {
    let parts = text.split(open).skip(1);
    let blocks = parts.filter_map(|part| part.split("```").next());
    blocks.map(|block| flat(block).trim().to_owned()).collect()
}

/// The recipes of both READMEs are code that runs.
#[test]
fn the_recipes_are_in_a_test() {
    let read = |path: &str| fs::read_to_string(root().join(path)).unwrap();
    let tested = flat(&read("examples/shop/tests/recipes.rs"));
    for readme in ["README.md", "README.zh-CN.md"] {
        let recipes = blocks(&read(readme), "```rust,ignore\n");
        assert_eq!(recipes.len(), 5, "{readme}");
        for recipe in recipes {
            assert!(tested.contains(&recipe), "{readme}:\n{recipe}");
        }
    }
}

/// The page of the service shows code that runs: each of its blocks stands in one file of the example.
#[test]
fn the_page_of_the_service_shows_its_source() {
    let example = root().join("examples/service");
    let folders = ["src", "tests"].map(|name| fs::read_dir(example.join(name)).unwrap());
    let files = folders.into_iter().flatten();
    let sources: Vec<_> = files
        .map(|file| flat(&fs::read_to_string(file.unwrap().path()).unwrap()))
        .collect();
    let page = fs::read_to_string(root().join("docs/service.md")).unwrap();
    let shown = blocks(&page, "```rust\n");
    assert!(shown.len() >= 8, "{} blocks", shown.len());
    for block in shown {
        let is_there = sources.iter().any(|source| source.contains(&block));
        assert!(is_there, "in no file of examples/service:\n{block}");
    }
}

/// A page of the API is a page of `docs/`, by a link: a copy would grow old, and its examples would be tested twice or never.
#[test]
fn the_pages_of_the_api_are_links() {
    for page in fs::read_dir(root().join("crates/leasehold/docs")).unwrap() {
        let page = page.unwrap().path();
        let name = page.file_name().unwrap().to_str().unwrap();
        let link = fs::read_link(&page).unwrap_or_default();
        assert_eq!(link, Path::new(&format!("../../../docs/{name}")), "{name}");
    }
}

/// Rustdoc finds no `.md` beside its pages. `docs.rs` defines where each label leads there; of two definitions the first counts.
#[test]
fn the_pages_of_the_api_link_each_other_by_labels_that_rustdoc_knows() {
    let pages = root().join("crates/leasehold/docs");
    let source = fs::read_to_string(root().join("crates/leasehold/src/docs.rs")).unwrap();
    let mut dead = Vec::new();
    for page in fs::read_dir(pages).unwrap() {
        let page = page.unwrap();
        let name = page.file_name().into_string().unwrap();
        let text = fs::read_to_string(page.path()).unwrap();
        let is_relative = |link: &&str| link.contains(".md") && !link.contains("://");
        let inline = between(&text, "](", &[')']);
        dead.extend(
            inline
                .into_iter()
                .filter(is_relative)
                .map(|link| format!("{name}: {link}")),
        );
        // The text before the page, back to the module before it.
        let front = source.split(&format!("docs/{name}")).next().unwrap();
        let front = front.rsplit("\n\n").next().unwrap();
        for line in text.lines().filter(|line| line.starts_with('[')) {
            let Some((label, to)) = line.split_once("]: ") else {
                continue;
            };
            if is_relative(&to) && !front.contains(&format!("/// {label}]: ")) {
                dead.push(format!("{name}: {line}"));
            }
        }
    }
    assert!(dead.is_empty(), "{dead:#?}");
}
