package main

import (
	"context"
	"fmt"

	"atoll.dev/atoll/client"
	"atoll.dev/atoll/server"
	"atoll.dev/atoll/workspaces"
)

// controller works until its context ends. Each serves all logical clusters.
type controller struct {
	name string
	run  func(context.Context) error
}

// controllers is every controller of the server, with all it depends on.
func controllers(s *server.Server, c *client.Clients, i *client.Informers) ([]controller, error) {
	var list []controller
	var err error
	add := func(name string, made interface{ Run(context.Context) error }, failed error) {
		if failed != nil && err == nil {
			err = fmt.Errorf("make controller %s: %w", name, failed)
		}
		list = append(list, controller{name: name, run: made.Run})
	}
	workspaces, failed := workspaces.New(c, i, workspaces.Options{URLBase: s.URL(), DeleteData: s.DeleteClusterData})
	add("workspaces", workspaces, failed)
	return list, err
}
