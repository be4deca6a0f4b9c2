//! What a host checks before it enters a configuration.

use inband_control::configuration::{Beginning, Configuration};
use inband_program::control_plane::check_history;

#[test]
fn a_replica_that_delivered_more_does_not_enter_an_epoch_that_begins_before() {
    let begins_at = |epoch, firsts| Configuration {
        epoch,
        revision: 1,
        members: Default::default(),
        leaders: Vec::new(),
        beginning: Beginning::Fresh(firsts),
    };
    let error = check_history(3, &[10, 21], &begins_at(4, vec![10, 20])).unwrap_err();
    assert_eq!((error.log, error.delivered, error.first), (1, 20, 20));
    assert!(check_history(3, &[10, 20], &begins_at(4, vec![10, 20])).is_ok());
    // Starting in the epoch itself, and entering the same epoch again.
    assert!(check_history(0, &[10, 21], &begins_at(4, vec![10, 20])).is_ok());
    assert!(check_history(4, &[10, 21], &begins_at(4, vec![10, 20])).is_ok());
}
