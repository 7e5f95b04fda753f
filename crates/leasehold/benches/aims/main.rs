//! How fast is it, next to the least that the same work can cost?
//!
//! One file per aim of `docs/performance.md`, each with its question and its unit at the top. All of them print
//! into one table, and each figure has its reference, taken in turns with it, beside it: machines differ and are
//! noisy, so only ratios within one run count.
//!
//! ```sh
//! cargo bench -p leasehold                    # everything, about twelve minutes
//! cargo bench -p leasehold -- P3 P6           # only these
//! cargo bench -p leasehold --features blocking,metrics -- P19 P20
//! cargo bench -p leasehold -- --short --json  # shorter windows; the rows as JSON
//! ```
//!
//! A bench is no test: the table marks what is missed, and the exit status is 0.

mod contend;
mod far;
mod float;
mod p11_fenced;
mod p12_readers;
mod p13_permits;
mod p15_multi;
mod p16_latch;
mod p17_queue;
mod p18_by_hand;
#[cfg(feature = "blocking")]
mod p19_blocking;
mod p1_pair;
#[cfg(feature = "metrics")]
mod p20_observed;
mod p21_sentinel;
mod p22_far_quorum;
mod p23_quorum;
mod p24_durable;
mod p26_cluster;
mod p29_growth;
mod p2_many_names;
mod p3_one_process;
mod p4_processes;
mod p6_handover;
mod p7_idle;
mod p8_renewal;
mod p9_memory;
mod raw;
mod stage;
mod table;
mod turns;
mod worker;

use stage::Stage;
use table::Table;

/// An aim and the function that measures it.
type Bench = (&'static str, fn(&Stage, &mut Table));

const BENCHES: &[Bench] = &[
    ("P1", p1_pair::run),
    ("P2", p2_many_names::run),
    ("P3", p3_one_process::run),
    ("P4", p4_processes::with_handoff),
    ("P5", p4_processes::without_handoff),
    ("P6", p6_handover::run),
    ("P7", p7_idle::run),
    ("P8", p8_renewal::run),
    ("P9", p9_memory::run),
    ("P11", p11_fenced::run),
    ("P12", p12_readers::run),
    ("P13", p13_permits::run),
    ("P14", p6_handover::fair),
    ("P15", p15_multi::run),
    ("P16", p16_latch::run),
    ("P17", p17_queue::run),
    ("P18", p18_by_hand::run),
    #[cfg(feature = "blocking")]
    ("P19", p19_blocking::run),
    #[cfg(feature = "metrics")]
    ("P20", p20_observed::run),
    ("P21", p21_sentinel::run),
    ("P22", p22_far_quorum::run),
    ("P23", p23_quorum::run),
    ("P24", p24_durable::pair),
    ("P25", p24_durable::tasks),
    ("P26", p26_cluster::pair),
    ("P27", p26_cluster::handover),
    ("P28", p26_cluster::leases),
    ("P29", p29_growth::run),
];

/// The options of the command line.
#[derive(Debug, Default)]
struct Asked {
    json: bool,
    short: bool,
    /// Cargo runs us as a bench, and not among the tests.
    bench: bool,
    aims: Vec<String>,
}

fn asked() -> Asked {
    let mut asked = Asked::default();
    for arg in std::env::args().skip(1) {
        match arg.as_str() {
            "--bench" => asked.bench = true,
            "--json" => asked.json = true,
            "--short" => asked.short = true,
            _ if BENCHES
                .iter()
                .any(|(aim, _)| aim.eq_ignore_ascii_case(&arg)) =>
            {
                asked.aims.push(arg.to_ascii_uppercase());
            }
            _ => eprintln!(
                "{arg:?} is passed over: known are {}, --short and --json",
                known()
            ),
        }
    }
    asked
}

/// All aims of this build.
fn known() -> String {
    let aims: Vec<&str> = BENCHES.iter().map(|(aim, _)| *aim).collect();
    let features = "P19 with the feature blocking, P20 with metrics";
    format!("{} ({features})", aims.join(", "))
}

fn main() {
    if worker::run_if_told() {
        return;
    }
    let asked = asked();
    if !asked.bench && asked.aims.is_empty() {
        eprintln!("run `cargo bench -p leasehold`, or name aims: {}", known());
        return;
    }
    let stage = Stage::set(asked.short);
    let mut table = Table::default();
    for (aim, run) in BENCHES.iter().copied() {
        if asked.aims.is_empty() || asked.aims.iter().any(|asked| asked == aim) {
            eprintln!("{aim} …");
            run(&stage, &mut table);
        }
    }
    if asked.json {
        println!("{}", table.json(&stage));
    } else {
        print!("{}", table.text(&stage));
    }
}
