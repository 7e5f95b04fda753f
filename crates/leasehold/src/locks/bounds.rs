//! When a verb has its answer at the latest, for the pages of all kinds. `tests/trouble/own_leases.rs` holds them.

/// When a verb that does not wait for a holder has its answer, for its page.
macro_rules! ends_once {
    () => {
        "# Time\nIt answers within the operation timeout (2 s unless told otherwise) and a quarter of a second, whatever the server does.\nA [`Durability`](crate::Durability) adds up to an operation timeout and the durability timeout."
    };
    (of several) => {
        "# Time\nIt answers within the operation timeout (2 s unless told otherwise) and half a second, whatever the servers do: the parts\nthat it has are given back meanwhile. A [`Durability`](crate::Durability) adds up to an operation timeout and the durability timeout."
    };
}
pub(super) use ends_once;

/// The same of a verb that waits for a holder for a time.
macro_rules! ends_for {
    () => {
        "# Time\nIt answers when `wait` is over, whatever the server does. A [`Durability`](crate::Durability) adds up to the durability timeout."
    };
    (of several) => {
        "# Time\nIt answers a quarter of a second after `wait` is over, whatever the servers do: the parts that it has are given back meanwhile.\nA [`Durability`](crate::Durability) adds up to the durability timeout."
    };
}
pub(super) use ends_for;
