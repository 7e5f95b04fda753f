//! Real servers, a fault proxy and a history checker for testing distributed locks.
