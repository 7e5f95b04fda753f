//! A panic anywhere in a simulated client, which tokio would keep to itself.

use std::{cell::RefCell, panic, sync::Once, thread};

thread_local! {
    static LAST: RefCell<Option<String>> = const { RefCell::new(None) };
    static SIMULATES: RefCell<bool> = const { RefCell::new(false) };
}

/// From here on, panics of this thread are kept instead of printed.
pub fn keep() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let usual = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            if SIMULATES.with_borrow(|simulates| *simulates) {
                LAST.set(Some(info.to_string()));
            } else {
                usual(info);
            }
        }));
    });
    SIMULATES.set(true);
}

pub fn last() -> Option<String> {
    LAST.with_borrow(Clone::clone)
}

pub fn forget() {
    LAST.set(None);
}

/// Says what a panic of the simulation itself was, which ends the program: the hook has kept it.
pub struct OfTheSimulation(pub u64);

impl Drop for OfTheSimulation {
    fn drop(&mut self) {
        if thread::panicking() {
            let what = last().unwrap_or_default();
            eprintln!("seed {}: the simulation itself: {what}", self.0);
        }
    }
}
