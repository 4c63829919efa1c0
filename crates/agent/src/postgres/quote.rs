//! One quoting function per place that text is put into.
