use super::*;

#[test]
fn a_renewal_interval_over_a_third_of_the_lease_is_refused_with_both_values() {
    let config = Config {
        lease: Duration::from_secs(9),
        renew_every: Some(Duration::from_secs(4)),
        ..Config::default()
    };
    let error = config.check().unwrap_err().to_string();
    assert!(
        error.contains("4s") && error.contains("9s") && error.contains("3s"),
        "{error}"
    );
}

#[test]
fn leases_outside_a_millisecond_and_a_year_are_refused() {
    for (lease, limit) in [
        (Duration::ZERO, "at least 1ms"),
        (Duration::from_micros(999), "at least 1ms"),
        (Duration::MAX, "at most 366d"),
    ] {
        let error = check_lease("lease", lease).unwrap_err().to_string();
        assert!(
            error.contains(limit) && error.contains(&humane(lease)),
            "{error}"
        );
    }
    assert_eq!(
        check_lease("lease", Duration::from_micros(1_999)).unwrap(),
        Duration::from_millis(1)
    );
}
