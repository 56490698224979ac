package logicalcluster

import "context"

type initializerKey struct{}

// WithInitializer returns a context for requests of somebody who initializes workspaces for that initializer.
func WithInitializer(ctx context.Context, initializer string) context.Context {
	return context.WithValue(ctx, initializerKey{}, initializer)
}

// InitializerFrom returns the initializer by whose path a request came; "" if by none.
func InitializerFrom(ctx context.Context) string {
	initializer, _ := ctx.Value(initializerKey{}).(string)
	return initializer
}
