package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// snapshotPrefix begins the handle of every snapshot.
const snapshotPrefix = "snapshot"

// snapshotPath is where the snapshot with this handle is, or would be.
func (s store) snapshotPath(handle string) (string, error) {
	// A user can write any handle into a VolumeSnapshotContent.
	if !strings.HasPrefix(handle, snapshotPrefix) || strings.Contains(handle, "/") {
		return "", fmt.Errorf("%q is no handle of a snapshot", handle)
	}
	return filepath.Join(s.dir, "snapshots", handle), nil
}

// takeSnapshot copies a volume, or finds it copied, and returns the time of the
// copy. A copy under the final name is complete.
func (s store) takeSnapshot(ctx context.Context, volume, handle string) (time.Time, error) {
	path, err := s.snapshotPath(handle)
	if err != nil {
		return time.Time{}, err
	}
	if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
		unfinished := path + ".new"
		if err := os.RemoveAll(unfinished); err != nil {
			return time.Time{}, err
		}
		if err := os.MkdirAll(unfinished, 0o700); err != nil {
			return time.Time{}, err
		}
		if err := copyTree(ctx, s.path(volume), unfinished); err != nil {
			return time.Time{}, err
		}
		if err := os.Rename(unfinished, path); err != nil {
			return time.Time{}, err
		}
	}
	return s.snapshotTime(handle)
}

// snapshotTime is when the last entry of the snapshot's root was made.
func (s store) snapshotTime(handle string) (time.Time, error) {
	path, err := s.snapshotPath(handle)
	if err != nil {
		return time.Time{}, err
	}
	info, err := os.Stat(path)
	if err != nil {
		return time.Time{}, err
	}
	return info.ModTime(), nil
}

// removeSnapshot removes a snapshot and what a failed copy of it left; what is
// already gone is no error.
func (s store) removeSnapshot(handle string) error {
	path, err := s.snapshotPath(handle)
	if err != nil {
		return err
	}
	return errors.Join(os.RemoveAll(path+".new"), os.RemoveAll(path))
}

// restoreSnapshot copies a snapshot into the volume that create has made. It
// can be repeated until a pod uses the volume.
func (s store) restoreSnapshot(ctx context.Context, handle, volume string) error {
	path, err := s.snapshotPath(handle)
	if err != nil {
		return err
	}
	return copyTree(ctx, path, s.path(volume))
}

// copyTree copies what is in one directory into another, with owners and modes.
// Others may write meanwhile: a file that vanishes is left out, and each file is
// as long as it was when its copy started.
func copyTree(ctx context.Context, from, to string) error {
	return filepath.WalkDir(from, func(path string, entry fs.DirEntry, err error) error {
		if err == nil {
			err = ctx.Err()
		}
		if err == nil {
			err = copyEntry(path, filepath.Join(to, strings.TrimPrefix(path, from)), entry)
		}
		if path == from || !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		if entry.IsDir() {
			return fs.SkipDir
		}
		return nil
	})
}

func copyEntry(from, to string, entry fs.DirEntry) error {
	info, err := entry.Info()
	if err != nil {
		return err
	}
	owner, known := info.Sys().(*syscall.Stat_t)
	if !known {
		return fmt.Errorf("%s has no owner", from)
	}
	switch info.Mode().Type() {
	case fs.ModeDir:
		if err = os.Mkdir(to, 0o700); errors.Is(err, fs.ErrExist) {
			err = nil
		}
	case fs.ModeSymlink:
		return copyLink(from, to, owner)
	case 0:
		err = copyFile(from, to, info.Size())
	default:
		// A socket or pipe means nothing without its process.
		return nil
	}
	if err != nil {
		return err
	}
	if err := os.Chown(to, int(owner.Uid), int(owner.Gid)); err != nil {
		return err
	}
	// After the owner, because a change of owner clears some bits.
	return os.Chmod(to, info.Mode())
}

func copyLink(from, to string, owner *syscall.Stat_t) error {
	target, err := os.Readlink(from)
	if err != nil {
		return err
	}
	// An earlier try may have made it.
	if err := os.Remove(to); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := os.Symlink(target, to); err != nil {
		return err
	}
	return os.Lchown(to, int(owner.Uid), int(owner.Gid))
}

func copyFile(from, to string, size int64) error {
	source, err := os.Open(from)
	if err != nil {
		return err
	}
	defer source.Close()
	copied, err := os.Create(to)
	if err != nil {
		return err
	}
	_, err = io.Copy(copied, io.LimitReader(source, size))
	return errors.Join(err, copied.Close())
}
