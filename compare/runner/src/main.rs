//! The same work for each library in turns, and a table and a picture of it in docs/comparison.md. compare/run builds and starts it.

mod machine;
mod peer;
mod picture;
mod rounds;
mod server;
mod table;

use std::{fs, path::Path, process::ExitCode, time::Instant};

use machine::Cores;
use rounds::{FULL, Field, QUICK};

type Failure = Box<dyn std::error::Error + Send + Sync>;

const USAGE: &str = "runner [--quick | --check] [--left-out LIBRARY REASON]…";

struct Options {
    quick: bool,
    check: bool,
    left_out: Vec<(String, String)>,
}

fn options() -> Result<Options, Failure> {
    let mut options = Options {
        quick: false,
        check: false,
        left_out: Vec::new(),
    };
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        match word.as_str() {
            "--quick" => options.quick = true,
            "--check" => options.check = true,
            "--left-out" => match (words.next(), words.next()) {
                (Some(library), Some(reason)) => options.left_out.push((library, reason)),
                _ => return Err(USAGE.into()),
            },
            other => return Err(format!("{other:?} is unknown: {USAGE}").into()),
        }
    }
    Ok(options)
}

fn main() -> ExitCode {
    let done = options().and_then(|options| {
        if options.check {
            check()
        } else {
            measure(options)
        }
    });
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("compare: {failure}");
            ExitCode::FAILURE
        }
    }
}

fn check() -> Result<(), Failure> {
    let cores = Cores::find();
    let (one, four) = rounds::check(peer::NOTHING, &cores)?;
    println!("a lock that never excludes: {one} updates lost in one process, {four} in four");
    if one == 0 || four == 0 {
        return Err("a lock that never excludes was not found out".into());
    }
    let (one, four) = rounds::check(peer::LIBRARIES[0], &cores)?;
    println!("Leasehold: {one} updates lost in one process, {four} in four");
    if one + four > 0 {
        return Err("Leasehold has lost updates".into());
    }
    Ok(())
}

fn measure(options: Options) -> Result<(), Failure> {
    let began = Instant::now();
    let say = |words: &str| {
        let seconds = began.elapsed().as_secs();
        eprintln!("{:>2}:{:02} {words}", seconds / 60, seconds % 60);
    };
    let cores = Cores::find();
    let plan = if options.quick { QUICK } else { FULL };
    let mut field = Field {
        left_out: options.left_out,
        ..Field::default()
    };
    for library in peer::LIBRARIES {
        if field.left_out.iter().all(|(out, _)| out != library) {
            say(&format!("starting {library}"));
            field.enter(library, &cores);
        }
    }
    field.run(plan, &cores, &say);
    if field
        .contenders
        .first()
        .is_none_or(|first| first.library != peer::LIBRARIES[0])
    {
        return Err(
            "Leasehold itself did not get to the end, so there is nothing to compare with".into(),
        );
    }
    let section = table::section(&field, &cores, plan)?;
    // Figures of short windows are for no reader.
    let folder = Path::new(if options.quick {
        "target/compare"
    } else {
        "docs"
    });
    for (theme, colours) in picture::THEMES {
        picture::draw(
            &folder.join(format!("compare-{theme}.svg")),
            &colours,
            &field,
        )?;
    }
    let page = folder.join("comparison.md");
    if options.quick {
        fs::write(&page, &section)?;
    } else {
        fs::write(&page, table::weave(&fs::read_to_string(&page)?, &section)?)?;
    }
    println!("{section}");
    say(&format!(
        "written: {} and two pictures beside it",
        page.display()
    ));
    let ratios = Path::new("target/compare").join(if options.quick {
        "ratios.quick"
    } else {
        "ratios"
    });
    println!("{}", table::agreement(&ratios, &field)?);
    Ok(())
}
