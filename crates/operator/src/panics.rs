//! Panics: each is told once in the log, with its place, and whoever catches one learns that place.

use std::cell::RefCell;
use std::panic::PanicHookInfo;

thread_local! {
    static LAST: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// From now on every panic is logged once, as a record like all others.
pub fn log_all() {
    std::panic::set_hook(Box::new(|panic| {
        let place = place_of(panic);
        let payload = panic.payload();
        let text = payload.downcast_ref::<&str>().copied();
        let message = text
            .or_else(|| payload.downcast_ref::<String>().map(String::as_str))
            .unwrap_or("(no text)");
        tracing::error!(place, message, "panic: a bug in the operator");
        LAST.set(Some(place));
    }));
}

/// Where this thread panicked last, to be asked right after that was caught.
pub fn take_place() -> String {
    LAST.take().unwrap_or_else(|| "an unknown place".to_owned())
}

fn place_of(panic: &PanicHookInfo<'_>) -> String {
    let place = panic
        .location()
        .map(|place| format!("{}:{}", place.file(), place.line()));
    place.unwrap_or_else(|| "an unknown place".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_catches_a_panic_learns_its_place_once() {
        let before = std::panic::take_hook();
        log_all();
        let line = line!() + 1;
        let caught = std::panic::catch_unwind(|| panic!("a bug"));
        let (first, second) = (take_place(), take_place());
        std::panic::set_hook(before);
        assert!(caught.is_err());
        assert!(first.ends_with(&format!("panics.rs:{line}")), "{first}");
        assert_eq!(second, "an unknown place");
    }
}
