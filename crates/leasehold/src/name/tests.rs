use super::*;

const CHANNEL: &str = "redisson_lock__channel";

fn name(name: &str) -> Name {
    Name::new(name).unwrap()
}

fn mutex(of: &str) -> LockId {
    LockId::new(LockKind::Mutex, name(of))
}

#[test]
fn keys_are_redissons_and_ours_share_their_slot() {
    assert_eq!(
        name("myLock").prefixed(CHANNEL).to_string(),
        "redisson_lock__channel:{myLock}"
    );
    assert_eq!(
        mutex("myLock").queue_key().to_string(),
        "leasehold:{myLock}:queue"
    );
    assert_eq!(
        name("order:{42}:lock").prefixed(CHANNEL).to_string(),
        "redisson_lock__channel:order:{42}:lock"
    );
    assert_eq!(
        mutex("order:{42}:lock")
            .gone_key("ab-1", LeaseId::from(7))
            .to_string(),
        "leasehold:-order:{42}:lock:gone:ab-1:7"
    );
}

#[test]
fn a_name_in_braces_shares_no_key_of_ours_with_the_name_inside() {
    assert_eq!(
        name("x").prefixed(CHANNEL).to_string(),
        name("{x}").prefixed(CHANNEL).to_string(),
        "as with Redisson"
    );
    assert_ne!(
        mutex("x").queue_key().to_string(),
        mutex("{x}").queue_key().to_string()
    );
    assert_ne!(
        mutex("x").grant_channel("c").to_string(),
        mutex("{x}").grant_channel("c").to_string()
    );
}

#[test]
fn names_that_would_split_a_slot_are_refused() {
    for bad in ["a{b", "a}b", "{}x", "}a{b}", "{"] {
        let error = Name::new(bad).unwrap_err().to_string();
        assert!(error.contains(bad) && error.contains("slot"), "{error}");
    }
}

#[test]
fn empty_and_overlong_names_are_refused_with_the_limit() {
    let empty = Name::new("").unwrap_err().to_string();
    assert!(empty.contains("at least 1 byte"), "{empty}");
    let long = Name::new(&"x".repeat(1025)).unwrap_err().to_string();
    assert!(
        long.contains("1025 bytes") && long.contains("at most 1024"),
        "{long}"
    );
    assert!(Name::new(&"x".repeat(1024)).is_ok());
}

#[test]
fn a_prefix_is_part_of_the_name_for_the_server_and_not_for_users() {
    let (prefixed, plain) = (Name::under("app:", "x").unwrap(), name("app:x"));
    assert_eq!(prefixed, plain);
    let clients_of = [(prefixed.clone(), 1), (plain, 2)];
    let one = std::collections::HashMap::from(clients_of);
    assert_eq!(one.len(), 1, "they hash alike");
    assert!(prefixed < name("app:y"));
    let id = LockId::new(LockKind::Mutex, prefixed);
    assert_eq!(id.to_string(), "mutex \"x\"");
    assert_eq!(id.name.to_string(), "x");
    assert_eq!(&*id.name.shared(), "x");
    assert_eq!(id.queue_key().to_string(), "leasehold:{app:x}:queue");
    let channel = id.name.prefixed(CHANNEL).to_string();
    assert_eq!(channel, "redisson_lock__channel:{app:x}");
}

#[test]
fn a_name_is_checked_with_its_prefix() {
    let refused = |prefix, name| Name::under(prefix, name).unwrap_err().to_string();
    let many = "x".repeat(1021);
    let long = refused("app:", &many);
    assert!(
        long.contains("1025 bytes, with 4 of the client's prefix"),
        "{long}"
    );
    assert!(Name::under("app:", &many[1..]).is_ok());
    let ours = refused("lease", "hold:x");
    assert!(ours.contains("\"hold:x\" behind the prefix"), "{ours}");
    assert!(Name::under("app:", "leasehold:x").is_ok());
    assert!(refused("app}:", "x").contains("slot"));
    assert!(refused("app:", "").contains("at least 1 byte"));
    assert!(Name::under("{app}:", "order:{42}").is_ok());
}

/// Each hold has one.
#[test]
fn a_name_is_not_larger_than_its_text() {
    assert_eq!(size_of::<Name>(), size_of::<std::sync::Arc<str>>());
}
